"""The tables of the search index, and every statement about them.

`session_texts` holds the words of each message. The full-text index follows it by itself: on SQLite by
triggers, on PostgreSQL as a column that is computed from the others. So rows that are deleted or copied with
their agent need nothing else. Each word in the full-text index begins with the `token` of its agent, so that
a search reads no words of other agents.

`session_indexed` says that the messages of an agent with a number of at least `first` are in the index.
"""

from __future__ import annotations

import hashlib

from outlast.store.operations import BulkStatement, Query, Statement

ALL = 1  # `first` when every message is in the index: numbers begin with 1
NOTHING = 1 << 62  # `first` when no message is

_COLUMNS = (
    "agent text, id text, slice bigint, number bigint, token text, analyser text, due bigint, start bigint,"
    " length bigint, words text, stems text"
)
_INSERT = """
    INSERT INTO session_texts
        (agent, id, slice, number, token, analyser, due, start, length, words, stems)
    VALUES (:agent, :id, :slice, :number, :token, :analyser, :due, :start, :length, :words, :stems)
"""
_REPLACE = """
    analyser = excluded.analyser, due = excluded.due, start = excluded.start, length = excluded.length,
    words = excluded.words, stems = excluded.stems
"""

# A message that is stored, again or for the first time. Its number stays, as it does in `messages`.
PUT = Statement.same(
    "session_texts put",
    _COLUMNS,
    f"{_INSERT} ON CONFLICT (agent, id, slice) DO UPDATE SET {_REPLACE}",
    key=3,
)
# A message that was read some time ago: words that were written in the meantime are newer.
FILL = Statement.same(
    "session_texts fill",
    _COLUMNS,
    f"""
        {_INSERT} ON CONFLICT (agent, id, slice) DO UPDATE SET number = excluded.number, {_REPLACE}
        WHERE session_texts.analyser <> excluded.analyser
    """,
    key=3,
)
# A slice of a message that is still due as it was when it was read: the first slice, and the others.
FINISH = Statement.same(
    "session_texts finish",
    "agent text, id text, due bigint, start bigint, length bigint, words text, stems text",
    """
        UPDATE session_texts
        SET due = 0, start = :start, length = :length, words = :words, stems = :stems
        WHERE session_texts.agent = :agent AND session_texts.id = :id AND session_texts.slice = 0
          AND session_texts.due = :due
    """,
    key=2,
)
EXTEND = BulkStatement.same(
    "session_texts extend",
    """
        INSERT INTO session_texts
            (agent, id, slice, number, token, analyser, due, start, length, words, stems)
        SELECT agent, id, CAST(?4 AS BIGINT), number, token, analyser, 0, CAST(?5 AS BIGINT),
               CAST(?6 AS BIGINT), CAST(?7 AS TEXT), CAST(?8 AS TEXT)
        FROM session_texts
        WHERE agent = ?1 AND id = ?2 AND slice = 0 AND due = ?3
        ON CONFLICT DO NOTHING
    """,
)
TRIM = Statement.same(
    "session_texts trim",
    "agent text, id text, slices bigint",
    """
        DELETE FROM session_texts
        WHERE session_texts.agent = :agent AND session_texts.id = :id AND session_texts.slice >= :slices
    """,
    key=2,
)
# Slices of an older text, or in another language, behind the first one.
DROP_OLD = Statement.same(
    "session_texts drop old",
    "agent text, id text, analyser text",
    """
        DELETE FROM session_texts
        WHERE session_texts.agent = :agent AND session_texts.id = :id AND session_texts.slice >= 1
          AND session_texts.analyser <> :analyser
    """,
    key=2,
)
NUMBER = Statement.same(
    "session_texts number",
    "agent text, id text, number bigint",
    """
        UPDATE session_texts SET number = :number
        WHERE session_texts.agent = :agent AND session_texts.id = :id
          AND session_texts.number <> :number
    """,
    key=2,
)
CLEAR = BulkStatement.same("session_texts clear", "DELETE FROM session_texts WHERE agent = ?")
DROP_ORPHANS = BulkStatement.same(
    "session_texts orphans",
    """
        DELETE FROM session_texts WHERE agent = ?1 AND NOT EXISTS (
            SELECT 1 FROM messages WHERE messages.agent = ?1 AND messages.id = session_texts.id
        )
    """,
)
BEGIN = Statement.same(
    "session_indexed begin",
    "agent text, analyser text, first bigint",
    """
        INSERT INTO session_indexed (agent, analyser, first) VALUES (:agent, :analyser, :first)
        ON CONFLICT DO NOTHING
    """,
    key=1,
)
# All messages were perhaps changed since they were indexed: they are indexed again, as in another language.
STALE = BulkStatement.same(
    "session_texts stale", "UPDATE session_texts SET analyser = '' WHERE agent = ?"
)
FORGET = BulkStatement.same("session_indexed forget", "DELETE FROM session_indexed WHERE agent = ?")
REACH = Statement.same(
    "session_indexed reach",
    "agent text, analyser text, first bigint",
    """
        INSERT INTO session_indexed (agent, analyser, first) VALUES (:agent, :analyser, :first)
        ON CONFLICT (agent) DO UPDATE SET analyser = excluded.analyser, first = excluded.first
    """,
    key=1,
)

STATE = Query.same("SELECT analyser, first FROM session_indexed WHERE agent = ?")
DUE = Query.same(
    "SELECT id, due FROM session_texts WHERE agent = ? AND due <> 0 ORDER BY number DESC LIMIT ?"
)
COUNTS = Query.same(
    """
    SELECT (SELECT count(*) FROM messages WHERE agent = ?1),
           (SELECT count(*) FROM session_texts WHERE agent = ?1 AND slice = 0)
    """,
    bulk=True,
)
MISSING = Query.same(
    """
    SELECT number, id, size FROM messages
    WHERE agent = ?1 AND number < ?2 AND NOT EXISTS (
        SELECT 1 FROM session_texts WHERE session_texts.agent = ?1 AND session_texts.id = messages.id
          AND slice = 0 AND session_texts.number = messages.number AND analyser = ?3
    )
    ORDER BY number DESC LIMIT ?4
    """,
    bulk=True,
)
# PostgreSQL must find the words by their index: neither the agent nor the order may lead it elsewhere.
FOUND = Query(
    """
    SELECT texts.id, texts.slice, texts.number, texts.start, texts.length, texts.words, texts.stems
    FROM session_words CROSS JOIN session_words_rowid AS docs CROSS JOIN session_texts AS texts
    WHERE session_words MATCH ?2 AND docs.doc = session_words.rowid AND docs.agent = ?1
      AND texts.agent = docs.agent AND texts.id = docs.id AND texts.slice = docs.slice
    ORDER BY session_words.rowid DESC LIMIT ?3
    """,
    """
    SELECT id, slice, number, start, length, words, stems FROM session_texts
    WHERE vector @@ $2::text::tsquery AND agent || '' = $1
    ORDER BY number + 0 DESC, slice DESC LIMIT $3
    """,
    bulk=True,
)
PAGE = Query.same(
    """
    SELECT number, id, size FROM messages WHERE agent = ? AND number < ?
    ORDER BY number DESC LIMIT ?
    """,
    bulk=True,
)


def messages(count: int) -> Query:
    """Return the query for messages. Arguments: agent, their ids."""
    return Query.same(
        "SELECT id, number, role, body, created_at FROM messages"
        f" WHERE agent = ? AND id IN ({', '.join('?' * count)})",
        bulk=True,
    )


def token_of(address: str) -> str:
    """Return what the words of an agent begin with. Two agents may share it: rows are also told by agent."""
    return hashlib.blake2b(address.encode("utf-8", "replace"), digest_size=4).hexdigest()
