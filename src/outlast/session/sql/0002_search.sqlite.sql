-- The words of each message, in slices. `due` is not 0 while the words still have to be found.
CREATE TABLE session_texts (
    agent    TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    slice    INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    token    TEXT    NOT NULL,
    analyser TEXT    NOT NULL,
    due      INTEGER NOT NULL,
    start    INTEGER NOT NULL,
    length   INTEGER NOT NULL,
    words    TEXT    NOT NULL,
    stems    TEXT    NOT NULL,
    PRIMARY KEY (agent, id, slice)
);

CREATE INDEX session_texts_due ON session_texts (agent) WHERE due <> 0;

-- How far the index of an agent reaches back.
CREATE TABLE session_indexed (
    agent    TEXT    NOT NULL PRIMARY KEY,
    analyser TEXT    NOT NULL,
    first    INTEGER NOT NULL
) WITHOUT ROWID;

-- A damaged row must not fail the commit of a message: numbers are bounded, and a row that is in the way is replaced.
-- Row ids of the full-text index: ascending with the numbers of messages, so that it is read newest first. Its
-- name is that of a table behind a virtual one, which is not copied: the triggers fill it in the copy.
CREATE TABLE session_words_rowid (
    doc   INTEGER NOT NULL PRIMARY KEY,
    agent TEXT    NOT NULL,
    id    TEXT    NOT NULL,
    slice INTEGER NOT NULL,
    UNIQUE (agent, id, slice)
);

-- Words arrive as they are stored: this tokenizer takes every character above ASCII as part of a word.
CREATE VIRTUAL TABLE session_words USING fts5 (tokens, content = '', columnsize = 0, tokenize = 'ascii');

CREATE TRIGGER session_texts_insert AFTER INSERT ON session_texts WHEN new.words <> '' BEGIN
    DELETE FROM session_words_rowid WHERE agent = new.agent AND id = new.id AND slice = new.slice
    ; INSERT INTO session_words_rowid (doc, agent, id, slice) VALUES (
        coalesce(
            (SELECT max(doc) + 1 FROM session_words_rowid
             WHERE doc >= (CAST(new.number AS INTEGER) & 1073741823) * 4294967296
               AND doc < ((CAST(new.number AS INTEGER) & 1073741823) + 1) * 4294967296),
            (CAST(new.number AS INTEGER) & 1073741823) * 4294967296
        ), new.agent, new.id, new.slice
    ); INSERT INTO session_words (rowid, tokens) SELECT doc,
        replace(' ' || new.words, ' ', ' ' || new.token || 'w') || ' ' || replace(new.stems, '~', new.token || 's')
    FROM session_words_rowid WHERE agent = new.agent AND id = new.id AND slice = new.slice; END;

CREATE TRIGGER session_texts_delete AFTER DELETE ON session_texts WHEN old.words <> '' BEGIN
    INSERT INTO session_words (session_words, rowid, tokens) SELECT 'delete', doc,
        replace(' ' || old.words, ' ', ' ' || old.token || 'w') || ' ' || replace(old.stems, '~', old.token || 's')
    FROM session_words_rowid WHERE agent = old.agent AND id = old.id AND slice = old.slice
    ; DELETE FROM session_words_rowid WHERE agent = old.agent AND id = old.id AND slice = old.slice; END;

CREATE TRIGGER session_texts_update AFTER UPDATE ON session_texts
WHEN old.words <> new.words OR old.stems <> new.stems OR old.number <> new.number BEGIN
    INSERT INTO session_words (session_words, rowid, tokens) SELECT 'delete', doc,
        replace(' ' || old.words, ' ', ' ' || old.token || 'w') || ' ' || replace(old.stems, '~', old.token || 's')
    FROM session_words_rowid WHERE agent = old.agent AND id = old.id AND slice = old.slice
    ; DELETE FROM session_words_rowid WHERE agent = old.agent AND id = old.id AND slice = old.slice
    ; DELETE FROM session_words_rowid WHERE agent = new.agent AND id = new.id AND slice = new.slice
    ; INSERT INTO session_words_rowid (doc, agent, id, slice) SELECT
        coalesce(
            (SELECT max(doc) + 1 FROM session_words_rowid
             WHERE doc >= (CAST(new.number AS INTEGER) & 1073741823) * 4294967296
               AND doc < ((CAST(new.number AS INTEGER) & 1073741823) + 1) * 4294967296),
            (CAST(new.number AS INTEGER) & 1073741823) * 4294967296
        ), new.agent, new.id, new.slice
    WHERE new.words <> ''
    ; INSERT INTO session_words (rowid, tokens) SELECT doc,
        replace(' ' || new.words, ' ', ' ' || new.token || 'w') || ' ' || replace(new.stems, '~', new.token || 's')
    FROM session_words_rowid WHERE agent = new.agent AND id = new.id AND slice = new.slice; END;
