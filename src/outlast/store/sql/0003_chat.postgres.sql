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
    PRIMARY KEY (agent, seq)
);

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
);
