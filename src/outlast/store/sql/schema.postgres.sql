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
    crashes         BIGINT NOT NULL DEFAULT 0,
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

CREATE TABLE schedules (
    agent         TEXT COLLATE "C" NOT NULL,
    id            TEXT COLLATE "C" NOT NULL,
    identity      TEXT COLLATE "C",
    kind          TEXT   NOT NULL,
    callback      TEXT   NOT NULL,
    payload       TEXT   NOT NULL,
    cron          TEXT,
    timezone      TEXT,
    interval      BIGINT,
    retry         TEXT,
    created_at    BIGINT NOT NULL,
    occurrence    BIGINT NOT NULL,
    run_at        BIGINT NOT NULL,
    claimed_at    BIGINT,
    defers        BIGINT NOT NULL,
    crashes       BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (agent, id)
);

CREATE UNIQUE INDEX schedules_identity ON schedules (agent, identity) WHERE identity IS NOT NULL;

CREATE INDEX schedules_run_at ON schedules (agent, run_at);

CREATE INDEX schedules_claimed ON schedules (agent) WHERE claimed_at IS NOT NULL;

CREATE TABLE facts (
    agent TEXT COLLATE "C" NOT NULL,
    name  TEXT COLLATE "C" NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (agent, name)
);

CREATE TABLE sub_agents (
    agent      TEXT COLLATE "C" NOT NULL,
    kind       TEXT COLLATE "C" NOT NULL,
    name       TEXT COLLATE "C" NOT NULL,
    number     BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (agent, kind, name)
);

CREATE INDEX sub_agents_number ON sub_agents (agent, number);

CREATE TABLE admissions (
    agent  TEXT COLLATE "C" NOT NULL,
    origin TEXT COLLATE "C" NOT NULL,
    key    TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (agent, origin, key)
);

CREATE TABLE messages (
    agent      TEXT COLLATE "C" NOT NULL,
    id         TEXT COLLATE "C" NOT NULL,
    parent     TEXT COLLATE "C",
    number     BIGINT NOT NULL,
    role       TEXT NOT NULL,
    status     TEXT NOT NULL,
    turn       TEXT,
    size       BIGINT NOT NULL,
    body       TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (agent, id)
);

CREATE INDEX messages_parent ON messages (agent, parent, number);

CREATE TABLE inbox (
    agent       TEXT COLLATE "C" NOT NULL,
    seq         BIGINT NOT NULL,
    id          TEXT COLLATE "C" NOT NULL,
    kind        TEXT NOT NULL,
    origin      TEXT NOT NULL,
    policy      TEXT NOT NULL,
    key         TEXT COLLATE "C",
    state       TEXT NOT NULL,
    outcome     TEXT,
    error       TEXT,
    messages    TEXT,
    options     TEXT NOT NULL,
    metadata    TEXT,
    target      TEXT,
    message_id  TEXT,
    attempt     BIGINT NOT NULL,
    cancelled   TEXT,
    accepted_at BIGINT NOT NULL,
    started_at  BIGINT,
    ended_at    BIGINT,
    detail      TEXT,
    PRIMARY KEY (agent, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE UNIQUE INDEX inbox_id ON inbox (agent, id);

CREATE UNIQUE INDEX inbox_key ON inbox (agent, key) WHERE key IS NOT NULL;

CREATE INDEX inbox_open ON inbox (agent, seq) WHERE ended_at IS NULL;

CREATE INDEX inbox_ended ON inbox (agent, ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE streams (
    agent   TEXT COLLATE "C" NOT NULL,
    turn    TEXT COLLATE "C" NOT NULL,
    seq     BIGINT NOT NULL,
    count   BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    body    TEXT NOT NULL,
    PRIMARY KEY (agent, turn, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE calls (
    agent      TEXT COLLATE "C" NOT NULL,
    turn       TEXT COLLATE "C" NOT NULL,
    id         TEXT COLLATE "C" NOT NULL,
    name       TEXT NOT NULL,
    effect     TEXT NOT NULL,
    key        TEXT COLLATE "C",
    input      TEXT NOT NULL,
    state      TEXT NOT NULL,
    output     TEXT,
    started_at BIGINT NOT NULL,
    ended_at   BIGINT,
    PRIMARY KEY (agent, turn, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE UNIQUE INDEX calls_key ON calls (agent, key) WHERE key IS NOT NULL;

CREATE TABLE responses (
    agent TEXT COLLATE "C" NOT NULL,
    turn  TEXT COLLATE "C" NOT NULL,
    seq   BIGINT NOT NULL,
    PRIMARY KEY (agent, turn)
);

CREATE TABLE traces (
    agent  TEXT COLLATE "C" NOT NULL,
    turn   TEXT COLLATE "C" NOT NULL,
    parent TEXT NOT NULL,
    PRIMARY KEY (agent, turn)
);

CREATE INDEX messages_number ON messages (agent, number);

CREATE TABLE incidents (
    agent TEXT COLLATE "C" NOT NULL,
    turn  TEXT COLLATE "C" NOT NULL,
    state TEXT NOT NULL,
    cause TEXT,
    stash TEXT,
    held  TEXT,
    body  TEXT NOT NULL,
    at    BIGINT NOT NULL,
    PRIMARY KEY (agent, turn)
);

CREATE TABLE boots (
    agent   TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    strikes BIGINT NOT NULL,
    at      BIGINT NOT NULL
);

CREATE TABLE decisions (
    agent   TEXT COLLATE "C" NOT NULL,
    turn    TEXT COLLATE "C" NOT NULL,
    attempt BIGINT NOT NULL,
    body    TEXT NOT NULL,
    at      BIGINT NOT NULL,
    PRIMARY KEY (agent, turn, attempt)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE receipts (
    agent TEXT COLLATE "C" NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    key   TEXT COLLATE "C" NOT NULL,
    value TEXT NOT NULL,
    at    BIGINT NOT NULL,
    PRIMARY KEY (agent, scope, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX receipts_at ON receipts (agent, at);
