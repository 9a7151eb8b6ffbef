CREATE TABLE decisions (
    agent   TEXT NOT NULL,
    turn    TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    body    TEXT NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (agent, turn, attempt)
);
