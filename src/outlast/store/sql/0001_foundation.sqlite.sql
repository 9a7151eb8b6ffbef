CREATE TABLE agents (
    root      TEXT    NOT NULL PRIMARY KEY,
    epoch     INTEGER NOT NULL,
    owner     TEXT    NOT NULL,
    commit_no INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE storage (
    agent TEXT NOT NULL,
    key   TEXT NOT NULL,
    size  INTEGER NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (agent, key)
);

CREATE TABLE fibers (
    agent           TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    root_id         TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    managed         INTEGER NOT NULL,
    status          TEXT    NOT NULL,
    idempotency_key TEXT,
    snapshot        TEXT,
    metadata        TEXT,
    error           TEXT,
    created_at      INTEGER NOT NULL,
    started_at      INTEGER,
    interrupted_at  INTEGER,
    settled_at      INTEGER,
    tries           INTEGER NOT NULL,
    waits           INTEGER NOT NULL,
    retry_at        INTEGER,
    stashes         INTEGER NOT NULL,
    PRIMARY KEY (agent, id)
) WITHOUT ROWID;

CREATE UNIQUE INDEX fibers_idempotency_key ON fibers (agent, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE INDEX fibers_unfinished ON fibers (agent, created_at, id) WHERE settled_at IS NULL;

CREATE TABLE alarms (
    agent   TEXT    NOT NULL,
    source  TEXT    NOT NULL,
    wake_at INTEGER NOT NULL,
    PRIMARY KEY (agent, source)
) WITHOUT ROWID;

CREATE INDEX alarms_wake_at ON alarms (wake_at);
