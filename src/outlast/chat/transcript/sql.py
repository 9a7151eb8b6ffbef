"""The messages table: a tree of UI messages per agent, and every statement about it.

`parent` is the preceding message, `number` the order of storage. `status` is `settled`, `stopped` (its turn
was cancelled) or `interrupted` (its turn was interrupted); `turn` is the request that produced it.
"""

from __future__ import annotations

from outlast.store.operations import BulkStatement, Query, Statement

_COLUMNS = (
    "agent text, id text, parent text, number bigint, role text, status text, turn text, size bigint,"
    " body text, created_at bigint"
)
_INSERT = """
    INSERT INTO messages (agent, id, parent, number, role, status, turn, size, body, created_at)
    VALUES (:agent, :id, :parent, :number, :role, :status, :turn, :size, :body, :created_at)
"""

PUT = Statement.same(
    "messages put",
    _COLUMNS,
    f"""
        {_INSERT}
        ON CONFLICT (agent, id) DO UPDATE SET status = excluded.status, turn = excluded.turn,
            size = excluded.size, body = excluded.body
    """,
    key=2,
)

# The same for a message that must be new.
CREATE = Statement.same(
    "messages create", _COLUMNS, f"{_INSERT} ON CONFLICT DO NOTHING", key=2, expect=True
)

MOVE = Statement.same(
    "messages move",
    "agent text, id text, parent text",
    """
        UPDATE messages SET parent = :parent
        WHERE messages.agent = :agent AND messages.id = :id
    """,
    key=2,
)

REPLACE = Statement.same(
    "messages replace",
    "agent text, id text, size bigint, body text",
    """
        UPDATE messages SET size = :size, body = :body
        WHERE messages.agent = :agent AND messages.id = :id
    """,
    key=2,
    expect=True,
)

CLEAR = BulkStatement.same("messages clear", "DELETE FROM messages WHERE agent = ?")

# In a damaged SQLite file, a text may be in the place of a number.
LAST_NUMBER = Query(
    "SELECT number FROM messages WHERE agent = ? AND typeof(number) = 'integer'"
    " ORDER BY number DESC LIMIT 1",
    "SELECT number FROM messages WHERE agent = $1 ORDER BY number DESC LIMIT 1",
    bulk=True,
)
NEWEST = Query.same(
    "SELECT id FROM messages WHERE agent = ? ORDER BY number DESC LIMIT 1", bulk=True
)
BY_ID = Query.same("SELECT id, parent, body FROM messages WHERE agent = ? AND id = ?")
TURN = Query.same("SELECT turn FROM messages WHERE agent = ? AND id = ?")
PLACE = Query.same("SELECT role, parent FROM messages WHERE agent = ? AND id = ?")
CHILDREN = Query.same(
    "SELECT id, parent, body FROM messages WHERE agent = ? AND parent = ? ORDER BY number",
    bulk=True,
)
ROOTS = Query.same(
    "SELECT id, parent, body FROM messages WHERE agent = ? AND parent IS NULL ORDER BY number",
    bulk=True,
)
# For messages with siblings.
FORKS = Query.same("SELECT id, parent FROM messages WHERE agent = ? ORDER BY number", bulk=True)
# The first message of each agent whose address starts with a prefix, and the time of its last one.
CONVERSATIONS = Query.same(
    """
    SELECT messages.agent, known.last_at, messages.body
    FROM (
        SELECT agent, min(number) AS first, max(created_at) AS last_at FROM messages
        WHERE substr(agent, 1, ?) = ? GROUP BY agent ORDER BY last_at DESC LIMIT ?
    ) AS known
    JOIN messages ON messages.agent = known.agent AND messages.number = known.first
    ORDER BY known.last_at DESC
    """,
    bulk=True,
)
CONTAINING = Query.same(
    """
    SELECT agent, id, role, created_at, body FROM messages
    WHERE substr(agent, 1, ?) = ? AND lower(body) LIKE ? ESCAPE '!'
    ORDER BY created_at DESC, number DESC LIMIT ?
    """,
    bulk=True,
)
# UNION, not UNION ALL: a cycle of parents must not recurse for ever.
NEWEST_BELOW = Query.same(
    """
    WITH RECURSIVE below(id, number) AS (
        SELECT id, number FROM messages WHERE agent = ? AND id = ?
        UNION
        SELECT messages.id, messages.number FROM messages
        JOIN below ON messages.parent = below.id WHERE messages.agent = ?
    )
    SELECT id FROM below ORDER BY number DESC LIMIT 1
    """,
    bulk=True,
)

# From the leaf upwards, until the window is full; it always contains the last few messages.
PATH = Query.same(
    """
    WITH RECURSIVE path(id, parent, size, depth, total) AS (
        SELECT id, parent, size, 1, size FROM messages WHERE agent = ? AND id = ?
        UNION ALL
        SELECT messages.id, messages.parent, messages.size, path.depth + 1,
               path.total + messages.size
        FROM path JOIN messages ON messages.agent = ? AND messages.id = path.parent
        WHERE path.depth < ? OR path.total + messages.size <= ?
    )
    SELECT messages.id, messages.parent, messages.body
    FROM path JOIN messages ON messages.agent = ? AND messages.id = path.id
    ORDER BY path.depth DESC
    """,
    bulk=True,
)


def stored_ids(count: int) -> Query:
    """Return the query for those ids that are stored. Arguments: agent, the ids."""
    return Query.same(
        f"SELECT id FROM messages WHERE agent = ? AND id IN ({', '.join('?' * count)})"
    )
