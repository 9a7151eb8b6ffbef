CREATE TABLE agents (
    root      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    epoch     BIGINT NOT NULL,
    owner     TEXT   NOT NULL,
    commit_no BIGINT NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE storage (
    agent TEXT COLLATE "C" NOT NULL,
    key   TEXT COLLATE "C" NOT NULL,
    size  BIGINT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (agent, key)
);

CREATE TABLE fibers (
    agent           TEXT COLLATE "C" NOT NULL,
    id              TEXT COLLATE "C" NOT NULL,
    root_id         TEXT   NOT NULL,
    name            TEXT   NOT NULL,
    managed         BIGINT NOT NULL,
    status          TEXT   NOT NULL,
    idempotency_key TEXT COLLATE "C",
    snapshot        TEXT,
    metadata        TEXT,
    error           TEXT,
    created_at      BIGINT NOT NULL,
    started_at      BIGINT,
    interrupted_at  BIGINT,
    settled_at      BIGINT,
    tries           BIGINT NOT NULL,
    waits           BIGINT NOT NULL,
    retry_at        BIGINT,
    stashes         BIGINT NOT NULL,
    PRIMARY KEY (agent, id)
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX fibers_idempotency_key ON fibers (agent, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE INDEX fibers_unfinished ON fibers (agent, created_at, id) WHERE settled_at IS NULL;

CREATE TABLE alarms (
    agent   TEXT COLLATE "C" NOT NULL,
    source  TEXT COLLATE "C" NOT NULL,
    wake_at BIGINT NOT NULL,
    PRIMARY KEY (agent, source)
);

CREATE INDEX alarms_wake_at ON alarms (wake_at);
