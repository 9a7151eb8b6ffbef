"""What the connections of a chat agent are told: chunks as they become durable, in order, and how turns end.

A connection that was offered a running stream gets no live frame of it until it has said that it wants to
resume; then it gets what is stored, and is part of what follows. All of that happens between two awaits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from outlast.chat.gateway import ChatGateway, StoredTurn
from outlast.chat.message.results import TurnEnd
from outlast.chat.stream.stream import Passing
from outlast.chat.transcript.shown import Shown
from outlast.chat.turn.notices import (
    Accepted,
    Cleared,
    Ended,
    MessageUpdated,
    Recovering,
    Show,
    Started,
    TranscriptChanged,
)
from outlast.core import json
from outlast.host.notices import Notice
from outlast.server.room.outgoing import Outgoing
from outlast.server.room.replay import begins_at, closing
from outlast.server.room.transcripts import Transcripts
from outlast.server.socket import frames
from outlast.server.socket.connection import TRY_AGAIN, Connection
from outlast.server.socket.frames import Responses
from outlast.server.socket.line import Frame

if TYPE_CHECKING:
    from outlast.server.room.room import Room

_OUTCOMES = {"completed": None, "aborted": "aborted", "skipped": "skipped"}
_UNSHOWN = ('{"type":"error"', '{"type":"abort"')  # what the terminal frame tells


class Live:
    """A turn that is being told."""

    def __init__(self, started: Started, outgoing: Outgoing) -> None:
        self.id = started.request_id
        self.stream = started.stream
        self.continuation = started.continuation
        self.message_ids = started.message_ids
        self.shown: Show = started.shown
        self.at = 0  # what everybody who follows has been told
        self.followers: set[Connection] | None = None  # who has been told everything
        self.ended: Ended | None = None  # how, once that is durable
        self.is_cleared = False
        self._message_id = started.message_id
        self._outgoing = outgoing
        self.frames = Responses(self.id, continuation=self.continuation)

    def chunk(self, seq: int, chunk: str, *, replay: bool = False) -> str | None:
        """The frame of a chunk; None: clients are not told of it."""
        if not chunk or chunk.startswith(_UNSHOWN):
            return None
        place = None if isinstance(chunk, Passing) else seq
        public = self._outgoing.chunk(chunk, self._message_id)
        return self.frames.chunk(place, public, replay=replay)

    def replay(self) -> Iterator[str]:
        """The frames of what was told so far, of the attempt that counts."""
        chunks, end = self.stream.chunks, self.at
        places = range(begins_at(chunks[:end]), end)
        texts = (self.chunk(seq, chunks[seq], replay=True) for seq in places)
        return (text for text in texts if text is not None)

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
        self._outgoing = room.outgoing
        self._transcripts = Transcripts(room.outgoing)
        self.owners: dict[str, Connection] = {}  # by the requests that they made
        self.continuations: set[str] = set()  # of these requests, those that go on with a message
        self.clearing: Connection | None = None  # who clears, and knows it

    @property
    def live(self) -> Live | None:
        return self._turns[0] if self._turns else None

    # --- who comes and goes ----------------------------------------------------------------------

    def join(self, connection: Connection, gateway: ChatGateway) -> None:
        started, waiting, _, recovering = gateway.situation()
        self._find(started)
        self._hint(connection, recovering)
        if self.live is not None and self.live.has_begun:
            self._offer(connection, self.live.id)
            return
        if self.live is not None or waiting:
            id = waiting[0] if self.live is None else self.live.id
            connection.send(frames.frame(frames.PENDING, id=id))
            connection.parked = True
        shown = gateway.messages()
        if len(shown) or gateway.is_used:  # in a new conversation nobody can be behind
            self._transcripts.join(connection, shown)

    def _hint(self, connection: Connection, recovering: bool) -> None:
        if recovering:
            connection.send(frames.frame(frames.RECOVERING, recovering=True))

    def left(self, connection: Connection) -> None:
        self._transcripts.leave(connection)
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
                self._transcripts.tell(shown(), self._room.connections, owner=owner)
            case Accepted(request_id=id, kind="continue"):
                self.continuations.add(id)
            case Started(stream=stream):
                if all(live.stream is not stream for live in self._turns):  # not another attempt
                    self._follow(notice)
            case Ended(request_id=id):
                live = next((each for each in self._turns if each.id == id), None)
                if live is not None:  # once its last chunks are sent
                    live.ended = notice
                else:
                    self._end_unseen(notice)
            case MessageUpdated(message=message):
                self._room.send(frames.message_updated(self._outgoing.message(message)))
            case TranscriptChanged(shown=shown):
                self._transcripts.tell(shown(), self._room.connections)
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
        live = Live(started, self._outgoing)
        live.at = at
        self._turns.append(live)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._tell(), name="chat room")

    def tell_one(self, connection: Connection, gateway: ChatGateway) -> None:
        """Send one connection the conversation as it is."""
        self._transcripts.tell(gateway.messages(), [connection])

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
                if live.ended is None:  # not the turn is over, but the agent here
                    self._room.send_away(TRY_AGAIN)
                    return
                self._end(live, live.ended.end)
        finally:
            if self._task is asyncio.current_task():  # not when somebody else has come meanwhile
                self._task = None

    def _tell_chunks(self, live: Live, seq: int, chunks: Sequence[str]) -> None:
        self._offer_parked(live)
        following = [each for each in self._room.connections if each.offered != live.id]
        live.followers = set(following) if not seq else (live.followers or set()) & set(following)
        told: list[Frame] = []
        size = 0
        for chunk in chunks:
            text = live.chunk(seq, chunk)
            if text is not None:
                told.append(Frame(text))
                size += len(text)
            seq += not isinstance(chunk, Passing)
        for connection in following:
            connection.send_all(told, size)
        live.at = seq

    # --- ends ------------------------------------------------------------------------------------

    def _end(self, live: Live, end: TurnEnd) -> None:
        """The transcript first, for whoever hears that the turn is over goes on typing."""
        for connection in self._room.connections:
            if connection.offered == live.id:
                connection.offered = None
        shown = live.shown()
        if end.status == "aborted":
            self._heal(shown)
        last = terminal(live.frames, end, live.stream.chunks, live.message_ids)
        followers = live.followers or () if end.status == "completed" else ()
        # Of a turn that was cleared, clients may have made a message: that goes with the transcript.
        if live.is_cleared:
            self._room.send(last)
        self._transcripts.tell(shown, self._room.connections, followers=followers)
        if not live.is_cleared:
            self._room.send(last)
        self._forget(live.id)
        self._unpark()

    def _heal(self, shown: Shown) -> None:
        """The last answer for those who keep their own copy, whatever transcript comes.

        Who has stopped it shows it as it was then, without the words that were on their way; who has watched
        it break off shows it as still being written.
        """
        if shown.answer is not None:
            self._room.send(frames.message_updated(self._outgoing.message(shown.answer)))

    def _end_unseen(self, ended: Ended) -> None:
        """A turn that never began, or that began in another process and was interrupted."""
        responses = Responses(ended.request_id, continuation=ended.continuation)
        shown = ended.shown()
        self._transcripts.tell(shown, self._room.connections)
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

    def announce(self, id: str, owner: Connection) -> None:
        """A continuation is about to run, after an answer that this connection has given."""
        self.owners[id] = owner
        if self.live is not None and self.live.id == id and self.live.has_begun:
            self._offer(owner, id)
        else:
            owner.parked = True

    def probe(
        self,
        connection: Connection,
        probe: str | None,
        gateway: ChatGateway,
        *,
        just_asked: str | None = None,
    ) -> None:
        """A client asks whether there is anything to resume.

        `just_asked`: the request that the same client has sent together with this, as one that sends a
        message while it is mounted does. It reads that answer, which must not come twice.
        """
        started, waiting, failed, recovering = gateway.situation()
        self._hint(connection, recovering)  # what was told on connect may have come too early
        self._find(started)
        live = self.live
        id = live.id if live is not None else waiting[0] if waiting else None
        owner = None if id is None else self.owners.get(id)
        continues = live.continuation if live is not None else id in self.continuations
        has_begun = live is not None and live.has_begun
        if id is not None and id == just_asked and not has_begun:
            connection.send(frames.frame(frames.RESUME_NONE, probeId=probe))
        elif continues and owner and owner.id != connection.id and self._is_here(owner):
            connection.send(
                frames.frame(frames.RESUME_NONE, reason="continuation-owned", probeId=probe)
            )
        elif live is not None and has_begun:
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

    async def resume(self, connection: Connection, id: str, gateway: ChatGateway) -> None:
        """A client wants what it was offered."""
        started, waiting, _, _ = gateway.situation()
        self._find(started)
        live = next((each for each in self._turns if each.id == id), None)
        if connection.is_replaying(id):
            return  # all of it is on its way
        if live is not None:
            connection.send_each(id, live.replay())
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
        stored = await gateway.stored(id)
        if stored is None:
            connection.send(Responses(id, continuation=False).done(replay=True))
        else:
            self._replay_stored(connection, id, stored)

    def _replay_stored(self, connection: Connection, id: str, stored: StoredTurn) -> None:
        chunks, end, continuation, message_ids = stored
        responses = Responses(id, continuation=continuation)
        message_id = "" if end.message is None else end.message.id
        if end.status != "completed":  # nobody was there to close what was open
            message = None if end.message is None else end.message.raw
            chunks = [*chunks, *closing(chunks, message)]
        connection.send_each(
            id,
            (
                responses.chunk(seq, self._outgoing.chunk(chunk, message_id), replay=True)
                for seq, chunk in islice(enumerate(chunks), begins_at(chunks), None)
                if chunk and not chunk.startswith(_UNSHOWN)
            ),
        )
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
