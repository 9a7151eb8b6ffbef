CREATE TABLE receipts (
    agent TEXT COLLATE "C" NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    key   TEXT COLLATE "C" NOT NULL,
    value TEXT NOT NULL,
    at    BIGINT NOT NULL,
    PRIMARY KEY (agent, scope, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX receipts_at ON receipts (agent, at);
