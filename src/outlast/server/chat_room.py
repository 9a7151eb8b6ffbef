"""What the connections of a chat agent are told: chunks as they become durable, in order, and how turns end.

A connection that was offered a running stream gets no live frame of it until it has said that it wants to
resume; then it gets what is stored, and is part of what follows. All of that happens between two awaits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from outlast.chat.notices import (
    Accepted,
    Cleared,
    Ended,
    MessageUpdated,
    Recovering,
    Shown,
    Started,
    TranscriptChanged,
)
from outlast.chat.results import TurnEnd
from outlast.chat.serving import Serving
from outlast.chat.stream import Stream
from outlast.core import json
from outlast.host.notices import Notice
from outlast.server import frames
from outlast.server.connection import TRY_AGAIN, Connection
from outlast.server.frames import Responses
from outlast.server.replay import begins_at, closing

if TYPE_CHECKING:
    from outlast.server.room import Room

_OUTCOMES = {"completed": None, "aborted": "aborted", "skipped": "skipped"}
_UNSHOWN = ('{"type":"error"', '{"type":"abort"')  # what the terminal frame tells


class Live:
    """A turn that is being told."""

    def __init__(
        self,
        request_id: str,
        stream: Stream,
        continuation: bool,
        message_ids: Sequence[str],
        shown: Shown,
    ) -> None:
        self.id = request_id
        self.stream = stream
        self.continuation = continuation
        self.message_ids = message_ids
        self.shown = shown
        self.frames = Responses(request_id, continuation=continuation)
        self.at = 0  # what everybody who follows has been told
        self.is_cleared = False

    @property
    def has_begun(self) -> bool:
        """Whether there is anything to resume."""
        return bool(self.stream.chunks)


class ChatRoom:
    """The chat of one room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._turns: deque[Live] = deque()  # the first one is being told; the others wait
        self._task: asyncio.Task[None] | None = None
        self.owners: dict[str, Connection] = {}  # by the requests that they made
        self.continuations: set[str] = set()  # of these requests, those that go on with a message
        self.clearing: Connection | None = None  # who clears, and knows it
        self._last_told: str | None = None  # the turn whose end was told last

    @property
    def live(self) -> Live | None:
        return self._turns[0] if self._turns else None

    # --- who comes and goes ----------------------------------------------------------------------

    def join(self, connection: Connection, agent: Any) -> None:
        serving = getattr(agent, "_serving", None)
        if serving is None:
            return
        started, waiting, _, recovering = serving.situation()
        self._find(started)
        if self.live is not None and self.live.has_begun:
            self._offer(connection, self.live.id)
            return
        if self.live is not None or waiting:
            id = waiting[0] if self.live is None else self.live.id
            connection.send(frames.frame(frames.PENDING, id=id))
            connection.parked = True
        shown = serving.shown()
        if shown or serving.is_used:  # in a new conversation nobody can be behind
            connection.send(frames.messages(shown, connect=True))
        self._hint(connection, recovering)

    def _hint(self, connection: Connection, recovering: bool) -> None:
        if recovering:
            connection.send(frames.frame(frames.RECOVERING, recovering=True))

    def left(self, connection: Connection) -> None:
        if not self._room.connections and self._task is not None:
            self._task.cancel()
            self._task = None
            self._turns.clear()

    def _offer(self, connection: Connection, id: str, probe: str | None = None) -> None:
        connection.offered, connection.parked, connection.probing = id, False, False
        connection.send(frames.frame(frames.RESUMING, id=id, probeId=probe))

    # --- what the agent says ---------------------------------------------------------------------

    def hear(self, notice: Notice) -> None:
        match notice:
            case Accepted(request_id=id, kind="message", shown=shown):
                owner = self.owners.get(id)
                self._room.send(frames.messages(shown()), without=[owner] if owner else [])
            case Accepted(request_id=id, kind="continue"):
                self.continuations.add(id)
            case Started(stream=stream):
                if all(live.stream is not stream for live in self._turns):  # not another attempt
                    self._follow(notice)
            case Ended(request_id=id):
                if not self._is_told(id):
                    self._end_untold(notice)
            case MessageUpdated(message=message):
                self._room.send(frames.frame(frames.MESSAGE_UPDATED, message=message))
            case TranscriptChanged(shown=shown):
                self._room.send(frames.messages(shown()))
            case Recovering(recovering=recovering, request_id=id):
                self._room.send(frames.frame(frames.RECOVERING, recovering=recovering, id=id))
            case Cleared():
                without = [] if self.clearing is None else [self.clearing]
                self._room.send(frames.frame(frames.CLEAR), without=without)
                for live in self._turns:
                    live.is_cleared = True
            case _:
                pass

    def _follow(self, started: Started, *, at: int = 0) -> None:
        live = Live(
            started.request_id,
            started.stream,
            started.continuation,
            started.message_ids,
            started.shown,
        )
        live.at = at
        self._turns.append(live)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._tell(), name="chat room")

    def _find(self, started: Started | None) -> None:
        """Follow a turn that began when nobody was here, or that is about to be told."""
        if started is not None and self.live is None:
            self._follow(started, at=len(started.stream.chunks))

    def _offer_parked(self, live: Live) -> None:
        for connection in self._room.connections:
            if connection.parked:
                self._offer(connection, live.id)

    async def _tell(self) -> None:
        """Each turn to its end, one after another."""
        try:
            while self._turns:
                live = self._turns[0]
                async for seq, chunks in live.stream.batches(live.at):
                    self._tell_chunks(live, seq, chunks)
                self._turns.popleft()
                if live.stream.end is None:  # not the turn is over, but the agent here
                    self._room.send_away(TRY_AGAIN)
                    return
                self._end(live, live.stream.end)
        finally:
            if self._task is asyncio.current_task():  # not when somebody else has come meanwhile
                self._task = None

    def _tell_chunks(self, live: Live, seq: int, chunks: Sequence[str]) -> None:
        self._offer_parked(live)
        following = [each for each in self._room.connections if each.offered != live.id]
        for chunk in chunks:
            if chunk and not chunk.startswith(_UNSHOWN):
                text = live.frames.chunk(seq, chunk)
                for connection in following:
                    connection.send(text)
            seq += 1
        live.at = seq

    # --- ends ------------------------------------------------------------------------------------

    def _end(self, live: Live, end: TurnEnd) -> None:
        """The transcript first, for whoever hears that the turn is over goes on typing."""
        self._last_told = live.id
        for connection in self._room.connections:
            if connection.offered == live.id:
                connection.offered = None
        shown = live.shown()
        transcript = frames.messages(shown)
        if end.status == "aborted":
            self._heal(shown)
        last = terminal(live.frames, end, live.stream.chunks, live.message_ids)
        # Of a turn that was cleared, clients may have made a message: that goes with the transcript.
        for text in (last, transcript) if live.is_cleared else (transcript, last):
            self._room.send(text)
        self._forget(live.id)
        self._unpark()

    def _heal(self, shown: Sequence[dict[str, Any]]) -> None:
        """The last answer for those who keep their own copy, whatever transcript comes.

        Who has stopped it shows it as it was then, without the words that were on their way; who has watched
        it break off shows it as still being written.
        """
        answer = next((each for each in reversed(shown) if each["role"] == "assistant"), None)
        if answer is not None:
            self._room.send(frames.frame(frames.MESSAGE_UPDATED, message=answer))

    def _is_told(self, id: str) -> bool:
        """Whether a turn was followed here, to its end or so far."""
        return id == self._last_told or any(live.id == id for live in self._turns)

    def _end_untold(self, ended: Ended) -> None:
        """One that never began, or that began in another life and was interrupted."""
        responses = Responses(ended.request_id, continuation=ended.continuation)
        shown = ended.shown()
        self._room.send(frames.messages(shown))
        self._room.send(terminal(responses, ended.end, ended.chunks, ended.message_ids))
        if ended.end.status == "interrupted":
            self._heal(shown)
        self._forget(ended.request_id)
        self._unpark()

    def _forget(self, id: str) -> None:
        self.owners.pop(id, None)
        self.continuations.discard(id)

    def _unpark(self) -> None:
        """What somebody waited for has not come.

        Who has not asked is not told: it would be taken for the answer to a probe that is on its way here.
        """
        if self.live is None:
            for connection in self._room.connections:
                if connection.probing:
                    connection.send(frames.frame(frames.RESUME_NONE))
                connection.parked = connection.probing = False

    # --- resuming --------------------------------------------------------------------------------

    def probe(self, connection: Connection, probe: str | None, serving: Serving) -> None:
        """A client asks whether there is anything to resume."""
        started, waiting, failed, recovering = serving.situation()
        self._hint(connection, recovering)  # what was told on connect may have come too early
        self._find(started)
        live = self.live
        id = live.id if live is not None else waiting[0] if waiting else None
        owner = None if id is None else self.owners.get(id)
        continues = live.continuation if live is not None else id in self.continuations
        if owner is connection and not continues and connection.offered != id:
            # What it has asked for itself is on its way to it, and must not come twice.
            connection.send(frames.frame(frames.RESUME_NONE, probeId=probe))
        elif continues and owner and owner.id != connection.id and self._is_here(owner):
            connection.send(
                frames.frame(frames.RESUME_NONE, reason="continuation-owned", probeId=probe)
            )
        elif live is not None and live.has_begun:
            self._offer(connection, live.id, probe)
        elif id is not None:
            connection.parked = connection.probing = True
            connection.send(frames.frame(frames.PENDING, id=id, probeId=probe))
        elif failed is not None:
            self._offer(connection, failed, probe)
        else:
            connection.send(frames.frame(frames.RESUME_NONE, reason="idle", probeId=probe))

    def _is_here(self, owner: Connection) -> bool:
        """Whether this client is still connected, be it with another socket."""
        mine = (each for each in self._room.connections if each.id == owner.id)
        return any(not each.is_closing for each in mine)

    async def resume(self, connection: Connection, id: str, serving: Serving) -> None:
        """A client wants what it was offered."""
        started, waiting, _, _ = serving.situation()
        self._find(started)
        live = next((each for each in self._turns if each.id == id), None)
        if live is not None:
            told = live.stream.chunks[: live.at]
            for seq, chunk in islice(enumerate(told), begins_at(told), None):
                if chunk and not chunk.startswith(_UNSHOWN):
                    connection.send(live.frames.chunk(seq, chunk, replay=True))
            connection.send(live.frames.replay_complete())
            if connection.offered == id:
                connection.offered = None
            return
        if connection.offered == id:
            connection.offered = None
        if id in waiting:
            connection.parked = connection.probing = True
            connection.send(frames.frame(frames.PENDING, id=id))
            return
        stored = await serving.stored(id)
        if stored is None:
            connection.send(Responses(id, continuation=False).done(replay=True))
            return
        chunks, end, continuation, message_ids = stored
        responses = Responses(id, continuation=continuation)
        if end.status != "completed":  # nobody was there to close what was open
            message = None if end.message is None else end.message.raw
            chunks = [*chunks, *closing(chunks, message)]
        for seq, chunk in islice(enumerate(chunks), begins_at(chunks), None):
            if chunk and not chunk.startswith(_UNSHOWN):
                connection.send(responses.chunk(seq, chunk, replay=True))
        is_error = end.status in ("error", "interrupted")
        connection.send(
            terminal(responses, end, chunks, message_ids)
            if is_error
            else responses.done(
                outcome=_OUTCOMES.get(end.status), message_ids=message_ids, replay=True
            )
        )


def terminal(
    responses: Responses, end: TurnEnd, chunks: Sequence[str], message_ids: Sequence[str]
) -> str:
    """The frame that ends a request."""
    if end.status in ("error", "interrupted"):
        return responses.error(error_of(chunks), message_ids=message_ids)
    return responses.done(outcome=_OUTCOMES.get(end.status), message_ids=message_ids)


def error_of(chunks: Sequence[str]) -> str:
    """What a turn has shown of its error; never what is only in the log."""
    for chunk in reversed(chunks):
        if chunk.startswith('{"type":"error"'):
            return str(json.decode(chunk).get("errorText") or "An error occurred.")
    return "An error occurred."
