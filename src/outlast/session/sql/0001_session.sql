-- Context blocks that agents write. `key` is empty for the content of the block itself.
CREATE TABLE session_blocks (
    agent TEXT NOT NULL,
    label TEXT NOT NULL,
    key TEXT NOT NULL,
    content TEXT NOT NULL,
    description TEXT,
    at INTEGER NOT NULL,
    PRIMARY KEY (agent, label, key)
) WITHOUT ROWID;

-- Summaries that stand in for all messages up to `last`, when the model sees the conversation.
CREATE TABLE session_overlays (
    agent TEXT NOT NULL,
    number INTEGER NOT NULL,
    first TEXT,
    last TEXT NOT NULL,
    summary TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (agent, number)
) WITHOUT ROWID;
