CREATE TABLE incidents (
    agent TEXT COLLATE "C" NOT NULL,
    turn  TEXT COLLATE "C" NOT NULL,
    state TEXT NOT NULL,
    cause TEXT,
    stash TEXT,
    held  TEXT,
    body  TEXT NOT NULL,
    at    BIGINT NOT NULL,
    PRIMARY KEY (agent, turn)
);

CREATE TABLE boots (
    agent   TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    strikes BIGINT NOT NULL,
    at      BIGINT NOT NULL
);
