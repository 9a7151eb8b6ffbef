"""What a server asks of a chat agent: what its clients see, what is going on, and what they want."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from outlast.chat.asking import Asking
from outlast.chat.inbox import Inbox, Request
from outlast.chat.inbox_rows import EntryRow
from outlast.chat.messages import to_messages
from outlast.chat.notices import Recovering, Started
from outlast.chat.overlap import Concurrency
from outlast.chat.results import TurnEnd
from outlast.chat.transcript import Transcript
from outlast.chat.turns import Turns
from outlast.core import json
from outlast.host.activation import Activation


class Situation(NamedTuple):
    """What a client that comes now has missed."""

    started: Started | None  # the turn that runs
    waiting: list[str]  # requests that are accepted and have not started
    failed: str | None  # the last request, if it failed
    recovering: bool


class StoredTurn(NamedTuple):
    """A turn that has ended, as far as it is kept."""

    chunks: list[str]
    end: TurnEnd
    continuation: bool
    message_ids: tuple[str, ...]


class Serving:
    """The door for servers."""

    def __init__(
        self,
        activation: Activation,
        inbox: Inbox,
        transcript: Transcript,
        turns: Turns,
        asking: Asking,
    ) -> None:
        self._activation = activation
        self._inbox = inbox
        self._transcript = transcript
        self._turns = turns
        self._asking = asking
        self._recovering = False

    def shown(self) -> list[dict[str, Any]]:
        """What clients see: the stored path, and what was accepted and is not part of it yet."""
        return self._turns.shown()

    @property
    def is_used(self) -> bool:
        """Whether anything was ever asked."""
        return self._inbox.last_seq > 0

    def situation(self) -> Situation:
        waiting = [entry.id for entry in self._inbox.open if entry.state == "accepted"]
        failed = self._inbox.last_failed if not waiting else None
        return Situation(self._turns.started(), waiting, failed, self._recovering)

    def set_recovering(self, recovering: bool, request_id: str | None = None) -> None:
        """Tell clients that an interrupted turn is about to go on, or that this is over."""
        if recovering != self._recovering:
            self._recovering = recovering
            self._activation.tell(Recovering(recovering, request_id))

    async def stored(self, id: str) -> StoredTurn | None:
        """A request that has ended; None: it is not known, or has not."""
        entry = await self._inbox.get(id)
        if entry is None or entry.ended_at is None:
            return None
        stream = await self._turns.stored_stream(entry)
        assert stream.end is not None
        return StoredTurn(stream.chunks, stream.end, entry.kind == "continue", ())

    async def ask(
        self,
        id: str,
        messages: Sequence[dict[str, Any]],
        *,
        regenerates: str | None,
        body: Mapping[str, Any],
        client_tools: Sequence[Any] | None,
        concurrency: Concurrency,
        principal: Any = None,
    ) -> tuple[EntryRow | None, bool]:
        """Accept what a client asks. None: it was dropped."""
        options = self._asking.options(body, client_tools)
        if principal is not None and principal is not True:
            options["principal"] = principal
        if regenerates is not None:
            target = regenerates or None
            request = Request("regenerate", "chat", id=id, target=target, options=options)
            return await self._inbox.accept(request)
        given = to_messages(list(messages), self._activation.ids)
        request = Request("message", "chat", given, id=id, options=options)
        return await self._asking.message(request, concurrency)


def message_ids(entry: EntryRow) -> tuple[str, ...]:
    """The messages that a request brought, while it waits."""
    if entry.messages is None:
        return ()
    return tuple(str(message["id"]) for message in json.decode(entry.messages))
