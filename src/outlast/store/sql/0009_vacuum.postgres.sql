ALTER TABLE streams SET (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE inbox SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE calls SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE decisions SET (autovacuum_vacuum_scale_factor = 0.05);
