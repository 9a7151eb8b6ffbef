-- The words of a row as a vector: `token`, `w` and the word, each with its position; `token`, `s` and the stem.
CREATE FUNCTION session_vector(token TEXT, words TEXT, stems TEXT) RETURNS tsvector
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT (
        coalesce((SELECT string_agg('''' || token || 'w' || word || ''':' || place, ' ')
                  FROM unnest(string_to_array(words, ' ')) WITH ORDINALITY AS of_words (word, place)
                  WHERE word <> ''), '')
        || ' ' || coalesce((SELECT string_agg(DISTINCT '''' || token || 's' || substr(stem, 2) || '''', ' ')
                            FROM unnest(string_to_array(stems, ' ')) AS of_stems (stem)
                            WHERE stem <> ''), '')
    )::tsvector $$;

-- The words of each message, in slices. `due` is not 0 while the words still have to be found.
CREATE TABLE session_texts (
    agent    TEXT COLLATE "C" NOT NULL,
    id       TEXT COLLATE "C" NOT NULL,
    slice    BIGINT NOT NULL,
    number   BIGINT NOT NULL,
    token    TEXT COLLATE "C" NOT NULL,
    analyser TEXT COLLATE "C" NOT NULL,
    due      BIGINT NOT NULL,
    start    BIGINT NOT NULL,
    length   BIGINT NOT NULL,
    words    TEXT COLLATE "C" NOT NULL,
    stems    TEXT COLLATE "C" NOT NULL,
    vector   tsvector GENERATED ALWAYS AS (session_vector(token, words, stems)) STORED,
    PRIMARY KEY (agent, id, slice)
);

CREATE INDEX session_texts_due ON session_texts (agent) WHERE due <> 0;

-- New rows wait in a short list, which every search reads.
CREATE INDEX session_texts_vector ON session_texts USING gin (vector) WITH (gin_pending_list_limit = 256);

-- How far the index of an agent reaches back.
CREATE TABLE session_indexed (
    agent    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    analyser TEXT COLLATE "C" NOT NULL,
    first    BIGINT NOT NULL
);
