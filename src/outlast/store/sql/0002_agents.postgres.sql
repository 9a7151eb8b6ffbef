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
    claimed_epoch BIGINT,
    defers        BIGINT NOT NULL,
    PRIMARY KEY (agent, id)
);

CREATE UNIQUE INDEX schedules_identity ON schedules (agent, identity) WHERE identity IS NOT NULL;

CREATE INDEX schedules_run_at ON schedules (agent, run_at);

CREATE INDEX schedules_claimed ON schedules (agent) WHERE claimed_epoch IS NOT NULL;

CREATE TABLE facts (
    agent TEXT COLLATE "C" NOT NULL,
    name  TEXT COLLATE "C" NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (agent, name)
);
