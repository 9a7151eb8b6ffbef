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
