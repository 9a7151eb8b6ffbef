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
