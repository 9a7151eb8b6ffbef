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
    crashes         INTEGER NOT NULL DEFAULT 0,
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

CREATE TABLE schedules (
    agent         TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    identity      TEXT,
    kind          TEXT    NOT NULL,
    callback      TEXT    NOT NULL,
    payload       TEXT    NOT NULL,
    cron          TEXT,
    timezone      TEXT,
    interval      INTEGER,
    retry         TEXT,
    created_at    INTEGER NOT NULL,
    occurrence    INTEGER NOT NULL,
    run_at        INTEGER NOT NULL,
    claimed_at    INTEGER,
    defers        INTEGER NOT NULL,
    crashes       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (agent, id)
) WITHOUT ROWID;

CREATE UNIQUE INDEX schedules_identity ON schedules (agent, identity) WHERE identity IS NOT NULL;

CREATE INDEX schedules_run_at ON schedules (agent, run_at);

CREATE INDEX schedules_claimed ON schedules (agent) WHERE claimed_at IS NOT NULL;

CREATE TABLE facts (
    agent TEXT NOT NULL,
    name  TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (agent, name)
);

CREATE TABLE sub_agents (
    agent      TEXT NOT NULL,
    kind       TEXT NOT NULL,
    name       TEXT NOT NULL,
    number     INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (agent, kind, name)
) WITHOUT ROWID;

CREATE INDEX sub_agents_number ON sub_agents (agent, number);

CREATE TABLE admissions (
    agent  TEXT NOT NULL,
    origin TEXT NOT NULL,
    key    TEXT NOT NULL,
    PRIMARY KEY (agent, origin, key)
) WITHOUT ROWID;

CREATE TABLE messages (
    agent      TEXT NOT NULL,
    id         TEXT NOT NULL,
    parent     TEXT,
    number     INTEGER NOT NULL,
    role       TEXT NOT NULL,
    status     TEXT NOT NULL,
    turn       TEXT,
    size       INTEGER NOT NULL,
    body       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (agent, id)
);

CREATE INDEX messages_parent ON messages (agent, parent, number);

CREATE TABLE inbox (
    agent       TEXT NOT NULL,
    seq         INTEGER NOT NULL,
    id          TEXT NOT NULL,
    kind        TEXT NOT NULL,
    origin      TEXT NOT NULL,
    policy      TEXT NOT NULL,
    key         TEXT,
    state       TEXT NOT NULL,
    outcome     TEXT,
    error       TEXT,
    messages    TEXT,
    options     TEXT NOT NULL,
    metadata    TEXT,
    target      TEXT,
    message_id  TEXT,
    attempt     INTEGER NOT NULL,
    cancelled   TEXT,
    accepted_at INTEGER NOT NULL,
    started_at  INTEGER,
    ended_at    INTEGER,
    detail      TEXT,
    PRIMARY KEY (agent, seq)
);

CREATE UNIQUE INDEX inbox_id ON inbox (agent, id);

CREATE UNIQUE INDEX inbox_key ON inbox (agent, key) WHERE key IS NOT NULL;

CREATE INDEX inbox_open ON inbox (agent, seq) WHERE ended_at IS NULL;

CREATE INDEX inbox_ended ON inbox (agent, ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE streams (
    agent   TEXT NOT NULL,
    turn    TEXT NOT NULL,
    seq     INTEGER NOT NULL,
    count   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    body    TEXT NOT NULL,
    PRIMARY KEY (agent, turn, seq)
);

CREATE TABLE calls (
    agent      TEXT NOT NULL,
    turn       TEXT NOT NULL,
    id         TEXT NOT NULL,
    name       TEXT NOT NULL,
    effect     TEXT NOT NULL,
    key        TEXT,
    input      TEXT NOT NULL,
    state      TEXT NOT NULL,
    output     TEXT,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,
    PRIMARY KEY (agent, turn, id)
);

CREATE UNIQUE INDEX calls_key ON calls (agent, key) WHERE key IS NOT NULL;

CREATE TABLE responses (
    agent TEXT NOT NULL,
    turn  TEXT NOT NULL,
    seq   INTEGER NOT NULL,
    PRIMARY KEY (agent, turn)
);

CREATE TABLE traces (
    agent  TEXT NOT NULL,
    turn   TEXT NOT NULL,
    parent TEXT NOT NULL,
    PRIMARY KEY (agent, turn)
);

CREATE INDEX messages_number ON messages (agent, number);

CREATE TABLE incidents (
    agent TEXT NOT NULL,
    turn  TEXT NOT NULL,
    state TEXT NOT NULL,
    cause TEXT,
    stash TEXT,
    held  TEXT,
    body  TEXT NOT NULL,
    at    INTEGER NOT NULL,
    PRIMARY KEY (agent, turn)
);

CREATE TABLE boots (
    agent   TEXT NOT NULL PRIMARY KEY,
    strikes INTEGER NOT NULL,
    at      INTEGER NOT NULL
);

CREATE TABLE decisions (
    agent   TEXT NOT NULL,
    turn    TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    body    TEXT NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (agent, turn, attempt)
);

CREATE TABLE receipts (
    agent TEXT NOT NULL,
    scope TEXT NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    at    INTEGER NOT NULL,
    PRIMARY KEY (agent, scope, key)
);

CREATE INDEX receipts_at ON receipts (agent, at);
