CREATE TABLE decisions (
    agent   TEXT COLLATE "C" NOT NULL,
    turn    TEXT COLLATE "C" NOT NULL,
    attempt BIGINT NOT NULL,
    body    TEXT NOT NULL,
    at      BIGINT NOT NULL,
    PRIMARY KEY (agent, turn, attempt)
);
