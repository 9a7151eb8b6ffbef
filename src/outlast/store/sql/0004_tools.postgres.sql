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
);

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
