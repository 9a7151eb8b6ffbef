CREATE TABLE receipts (
    agent TEXT NOT NULL,
    scope TEXT NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    at    INTEGER NOT NULL,
    PRIMARY KEY (agent, scope, key)
);

CREATE INDEX receipts_at ON receipts (agent, at);
