"""Blocks in the store: the rows of one agent, and the providers that keep their content there.

A write joins the open `commit()` block, so that it is durable together with its receipt, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from outlast.agent.commit import Commits
from outlast.core.clock import Clock
from outlast.store.base import Store
from outlast.store.operations import Query, Statement

OWN = ""  # the key of a block's own content

_COLUMNS = "agent text, label text, key text, content text, description text, at bigint"
_REPLACE = Statement.same(
    "session_blocks replace",
    _COLUMNS,
    """
        INSERT INTO session_blocks (agent, label, key, content, description, at)
        VALUES (:agent, :label, :key, :content, :description, :at)
        ON CONFLICT (agent, label, key) DO UPDATE
            SET content = excluded.content, description = excluded.description, at = excluded.at
    """,
    key=3,
)
# Adding to the stored content, whatever it is by then: no two appends lose each other.
_APPEND = Statement.same(
    "session_blocks append",
    _COLUMNS,
    """
        INSERT INTO session_blocks (agent, label, key, content, description, at)
        VALUES (:agent, :label, :key, :content, :description, :at)
        ON CONFLICT (agent, label, key) DO UPDATE SET content = CASE
                WHEN session_blocks.content = '' THEN excluded.content
                WHEN session_blocks.content LIKE '%' || chr10 THEN session_blocks.content || excluded.content
                ELSE session_blocks.content || chr10 || excluded.content END,
            at = excluded.at
    """.replace("chr10", "'\n'"),
    key=3,
)
_READ = Query.same(
    "SELECT content, description FROM session_blocks WHERE agent = ? AND label = ? AND key = ?",
    bulk=True,
)
_LIST = Query.same(
    "SELECT key, description FROM session_blocks"
    " WHERE agent = ? AND label = ? AND key <> '' ORDER BY key LIMIT ?",
    bulk=True,
)
MAX_LISTED = 1000  # entries in the catalogue of one block


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: the content of a block, or of one of its entries."""

    content: str
    description: str | None = None


Written = dict[tuple[str, str], Entry]  # by label and key: what an open commit() block has written


class BlockRows:
    """The stored blocks of one agent."""

    def __init__(self, agent: str, store: Store, commits: Commits, clock: Clock) -> None:
        self._agent = agent
        self._store = store
        self._commits = commits
        self._clock = clock

    async def read(self, label: str, key: str = OWN) -> Entry | None:
        """Return a row, also one that the open commit() block has written."""
        written = self._written()
        if written is not None and (label, key) in written:
            return written[label, key]
        rows = await self._store.fetch(_READ, self._agent, label, key)
        return Entry(*rows[0]) if rows else None

    async def entries(self, label: str) -> dict[str, str | None]:
        """Return the keys of a block's entries with their descriptions, ordered by key."""
        rows = await self._store.fetch(_LIST, self._agent, label, MAX_LISTED)
        found = dict(rows)
        for (block, key), entry in (self._written() or {}).items():
            if block == label and key != OWN:
                found[key] = entry.description
        return dict(sorted(found.items()))

    async def replace(self, label: str, key: str, entry: Entry) -> None:
        """Set a row. Durable when this returns; inside `commit()`, when the block ends."""
        self._note(label, key, entry)
        await self._commits.write([(_REPLACE, self._row(label, key, entry))])

    async def append(self, label: str, key: str, content: str) -> None:
        """Add a line to a row. Durable when this returns; inside `commit()`, when the block ends."""
        if self._written() is not None:
            now = await self.read(label, key) or Entry("")
            self._note(label, key, Entry(appended(now.content, content), now.description))
        await self._commits.write([(_APPEND, self._row(label, key, Entry(content)))])

    def _row(self, label: str, key: str, entry: Entry) -> tuple[str | int | None, ...]:
        now = self._clock.now()
        return (self._agent, label, key, entry.content, entry.description, now)

    def _note(self, label: str, key: str, entry: Entry) -> None:
        written = self._written()
        if written is not None:
            written[label, key] = entry

    def _written(self) -> Written | None:
        block = self._commits.current()
        return None if block is None else block.view(self, Written)


def appended(content: str, more: str) -> str:
    """Return a content with more at its end, on a line of its own."""
    return f"{content}\n{more}" if content and not content.endswith("\n") else f"{content}{more}"


S = TypeVar("S", bound="Stored")


class Stored:
    """A provider that keeps its content in the store. `bound` gives it the rows of one agent."""

    def __init__(self) -> None:
        self._rows: BlockRows | None = None
        self._label = ""

    def bound(self: S, rows: BlockRows, label: str) -> S:
        """Return a provider of the same class for one block of one agent."""
        new = type(self)()
        new._rows, new._label = rows, label
        return new

    @property
    def rows(self) -> BlockRows:
        if self._rows is None:
            raise RuntimeError(
                f"{type(self).__name__} has no store yet; pass it to with_context() or add_context()"
            )
        return self._rows


class StoredProvider(Stored):
    """A writable block in the store. The default."""

    async def get(self) -> str | None:
        entry = await self.rows.read(self._label)
        return None if entry is None else entry.content

    async def set(self, content: str) -> None:
        await self.rows.replace(self._label, OWN, Entry(content))

    async def append(self, content: str) -> None:
        await self.rows.append(self._label, OWN, content)


class StoredDocuments(Stored):
    """A loadable block in the store: entries that the model writes, lists and loads."""

    async def get(self) -> dict[str, str | None]:
        return await self.rows.entries(self._label)

    async def load(self, key: str) -> str | None:
        entry = await self.rows.read(self._label, key)
        return None if entry is None else entry.content

    async def set(self, key: str, content: str, description: str | None = None) -> None:
        await self.rows.replace(self._label, key, Entry(content, description))
