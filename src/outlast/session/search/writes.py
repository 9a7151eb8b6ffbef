"""Operations that keep the index up to date. They belong into the commit that stores the messages. Pure.

A short text is indexed at once. A long one is noted as due, and indexed in the background (`backfill`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from outlast.chat.transcript import sql as message_rows
from outlast.core import json
from outlast.session.search import sql
from outlast.session.search.message_text import searchable_text
from outlast.session.search.slices import Slice, slices
from outlast.session.search.words import Analyser
from outlast.store.operations import Argument, Operation

MAX_TEXT = 20_000  # characters that are indexed in the commit of their message
MAX_BODY = 100_000  # characters of a message that is looked at in the commit
UNKNOWN = 0  # the number of a message that the index does not know yet
_NOTHING = Slice("", "", 0, 0)


class IndexWrites:
    """The index rows of one agent."""

    def __init__(self, address: str, analyser: Analyser) -> None:
        self._address = address
        self._analyser = analyser
        self._token = sql.token_of(address)

    def stored(
        self, message: Mapping[str, Any], number: int = UNKNOWN, *, is_new: bool = False
    ) -> list[Operation]:
        """Return the operations for a message that is stored, or replaced.

        `number` is its place in the order of storage, needed if it may be new; an existing row keeps its own.
        """
        row = self._row(str(message["id"]), number, searchable_text(message))
        return self._put(row, is_new=is_new)

    def following(self, operations: Iterable[Operation]) -> list[Operation]:
        """Return the operations that follow those on the table of messages."""
        found: list[Operation] = []
        for statement, arguments in operations:
            if statement is message_rows.PUT or statement is message_rows.CREATE:
                id, number, body = arguments[1], arguments[3], arguments[8]
                row = self.row_of(str(id), int(number or 0), str(body))
                found += self._put(row, is_new=statement is message_rows.CREATE)
            elif statement is message_rows.REPLACE:
                row = self.row_of(str(arguments[1]), UNKNOWN, str(arguments[3]))
                found += self._put(row, is_new=False)
            elif statement is message_rows.CLEAR:
                found += self.cleared()
        return found

    def removed(self, ids: Iterable[str]) -> list[Operation]:
        """Return the operations for messages that are deleted."""
        return [(sql.TRIM, (self._address, id, 0)) for id in ids]

    def cleared(self) -> list[Operation]:
        """Return the operations for a conversation that is deleted."""
        return [(sql.CLEAR, (self._address,)), self.reached(sql.ALL)]

    def begun(self, number: int) -> Operation:
        """Return the operation that begins the index with the message of this number, if there is none."""
        return sql.BEGIN, (self._address, self._analyser.name, number)

    def abandoned(self) -> Operation:
        """Return the operation that ends the use of the index: what it contains is not to be trusted."""
        return sql.FORGET, (self._address,)

    def revived(self) -> list[Operation]:
        """Return the operations after which `filled` replaces everything that an abandoned index contains."""
        return [(sql.DROP_ORPHANS, (self._address,)), (sql.STALE, (self._address,))]

    def reached(self, first: int) -> Operation:
        """Return the operation that says how far back the index reaches."""
        return sql.REACH, (self._address, self._analyser.name, first)

    def filled(self, id: str, number: int, body: str) -> list[Operation]:
        """Return the operations for a message that was read some time ago."""
        row = self.row_of(id, number, body)
        return [
            (sql.DROP_OLD, (self._address, id, self._analyser.name)),
            (sql.FILL, row),
            (sql.NUMBER, (self._address, id, number)),
        ]

    def finished(self, id: str, due: int, body: str) -> list[Operation]:
        """Return the operations for a message that was due, in all of its slices."""
        first, *others = slices(text_of(body), self._analyser)
        operations: list[Operation] = [(sql.TRIM, (self._address, id, 1))]
        for number, each in enumerate(others, 1):
            place = (self._address, id, due, number)
            operations.append(
                (sql.EXTEND, (*place, each.start, each.length, each.words, each.stems))
            )
        last = (self._address, id, due, first.start, first.length, first.words, first.stems)
        return [*operations, (sql.FINISH, last)]

    def row_of(self, id: str, number: int, body: str) -> tuple[Argument, ...]:
        """Return the first row of a message in the index, from the message as it is stored."""
        if len(body) > MAX_BODY:
            return self._columns(id, number, _NOTHING, _mark(body))
        return self._row(id, number, text_of(body))

    def _row(self, id: str, number: int, text: str) -> tuple[Argument, ...]:
        if len(text) > MAX_TEXT:
            return self._columns(id, number, _NOTHING, _mark(text))
        found = slices(text, self._analyser)
        if len(found) > 1:
            return self._columns(id, number, _NOTHING, _mark(text))
        return self._columns(id, number, found[0], 0)

    def _columns(self, id: str, number: int, found: Slice, due: int) -> tuple[Argument, ...]:
        place = (self._address, id, 0, number, self._token, self._analyser.name, due)
        return (*place, found.start, found.length, found.words, found.stems)

    def _put(self, row: tuple[Argument, ...], *, is_new: bool) -> list[Operation]:
        put: Operation = (sql.PUT, row)
        return [put] if is_new else [put, (sql.TRIM, (self._address, row[1], 1))]


def has_due(operations: Iterable[Operation]) -> bool:
    """Return whether these operations leave a message to `backfill`."""
    return any(statement is sql.PUT and arguments[6] != 0 for statement, arguments in operations)


def text_of(body: str) -> str:
    """Return the text of a stored message; a damaged one has none."""
    try:
        message = json.decode(body)
    except ValueError:
        return ""
    return searchable_text(message) if isinstance(message, dict) else ""


def _mark(text: str) -> int:
    """Return a value for `due` that tells this text from another one. Never 0."""
    return zlib.crc32(text.encode("utf-8", "replace")) + 1
