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
