"""Ways to break outlast on purpose, inside the server: the checks must find each of them.

What each replaces is imported when it is asked for: looking at the names must not load a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any


def _again() -> None:
    """A `once` tool is noted as one that may run again."""
    from outlast.chat.tools.ledger import Ledger

    begin: Any = Ledger.begin

    def forgetful(self: Any, turn: str, id: str, name: str, effect: str, *more: Any) -> Any:
        return begin(self, turn, id, name, "read", *more)

    _replace(Ledger, "begin", forgetful)


def _early() -> None:
    """Chunks are shown before they are stored."""
    from outlast.chat.stream.stream import Stream

    def flush(self: Any) -> None:
        self._scheduled = False
        if self._closed or self._held or self._writing is not None:
            return
        if self._waiting or self._attached:
            taken, operations = self._take()
            given = self._given
            self.chunks += taken
            self._tell()

            async def later() -> tuple[int, ...]:
                await asyncio.sleep(0.2)
                found: tuple[int, ...] = await self._commit(operations)
                return found

            self._writing = asyncio.ensure_future(later())
            self._writing.add_done_callback(lambda outcome: self._written(outcome, [], given))

    _replace(Stream, "_flush", flush)


def _forgets() -> None:
    """What an interrupted turn has said is not found: it is said again."""
    from outlast.chat.recovery import resume as taking_up

    folded: Any = vars(taking_up)["folded"]
    _replace(taking_up, "folded", lambda chunks, begun: folded([], begun))


def _gives_up() -> None:
    """An interrupted turn is given up when it is interrupted the second time."""
    from outlast.chat.recovery import judge as recovering

    evaluated: Any = vars(recovering)["evaluated"]

    def strict(before: Any, **facts: Any) -> Any:
        found = evaluated(before, **facts)
        return found if found.attempts < 2 else replace(found, reason="max_attempts_exceeded")

    _replace(recovering, "evaluated", strict)


def _results() -> None:
    """The model is not shown what one of its calls has returned."""
    from outlast.chat.model import client as model

    request_messages: Any = vars(model)["request_messages"]

    def some(*arguments: Any) -> list[Any]:
        found: list[Any] = request_messages(*arguments)
        for message in found:
            if message.kind == "request" and len(message.parts) > 1:
                short = replace(message, parts=message.parts[1:])
                return [short if each is message else each for each in found]
        return found

    _replace(model, "request_messages", some)


def _silent() -> None:
    """Clients are not told that a turn has ended."""
    from outlast.server.room.chat_room import ChatRoom

    def end(self: Any, live: Any, end: Any) -> None: ...

    _replace(ChatRoom, "_end", end)


def _unanswered() -> None:
    """An interrupted turn is left as it is."""
    from outlast.chat.recovery.resume import Resumption

    async def resume_turn(self: Any, entry: Any, answer: Any) -> None:
        await asyncio.get_running_loop().create_future()

    _replace(Resumption, "resume_turn", resume_turn)


SABOTAGES: dict[str, Callable[[], None]] = {
    "again": _again,
    "early": _early,
    "forgets": _forgets,
    "gives up": _gives_up,
    "results": _results,
    "silent": _silent,
    "unanswered": _unanswered,
}


def apply(name: str | None) -> None:
    """Break it in this process; None or nothing: leave it as it is."""
    if name:
        SABOTAGES[name]()


def _replace(owner: Any, name: str, new: Any) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, new)
