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
