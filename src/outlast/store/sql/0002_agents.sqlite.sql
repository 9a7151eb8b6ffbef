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
