"""Sends the connections of a chat agent the chunks of its turns, in order once durable, and the turns' ends.

A connection that was offered a running stream receives none of its live frames until it asks to resume;
then it receives the stored frames and joins the live ones. All of that happens between two awaits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from outlast.chat.gateway import ChatGateway, StoredTurn
from outlast.chat.message.results import TurnEnd
from outlast.chat.stream.stream import Transient
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
from outlast.server.room.client_view import ClientView
from outlast.server.room.replay import begins_at, closing
from outlast.server.room.transcript_sync import TranscriptSync
from outlast.server.socket import frames
from outlast.server.socket.connection import TRY_AGAIN, Connection
from outlast.server.socket.frames import Responses
from outlast.server.socket.transport import Frame

if TYPE_CHECKING:
    from outlast.server.room.room import Room

_OUTCOMES = {"completed": None, "aborted": "aborted", "skipped": "skipped"}
_UNSHOWN = ('{"type":"error"', '{"type":"abort"')  # the terminal frame reports these


class LiveTurn:
    """A turn that is being broadcast."""

    def __init__(self, started: Started, view: ClientView) -> None:
        self.id = started.request_id
        self.stream = started.stream
        self.continuation = started.continuation
        self.message_ids = started.message_ids
        self.shown: Show = started.shown
        self.at = 0  # chunks sent to every follower
        self.followers: set[Connection] | None = None  # connections that received every chunk
        self.ended: Ended | None = None  # set once the end is durable
        self.is_cleared = False
        self._message_id = started.message_id
        self._view = view
        self.frames = Responses(self.id, continuation=self.continuation)

    def chunk(self, seq: int, chunk: str, *, replay: bool = False) -> str | None:
        """Return the frame of a chunk; None if clients do not receive it."""
        if not chunk or chunk.startswith(_UNSHOWN):
            return None
        place = None if isinstance(chunk, Transient) else seq
        public = self._view.chunk(chunk, self._message_id)
        return self.frames.chunk(place, public, replay=replay)

    def replay(self) -> Iterator[str]:
        """Yield the frames sent so far, of the current attempt."""
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
        self._turns: deque[LiveTurn] = deque()  # the first is being broadcast; the others wait
        self._task: asyncio.Task[None] | None = None
        self._view = room.view
        self._transcripts = TranscriptSync(room.view)
        self.owners: dict[str, Connection] = {}  # by request id
        self.continuations: set[str] = set()  # of these requests, those that continue a message
        self.clearing: Connection | None = None  # the connection that is clearing the conversation

    @property
    def live(self) -> LiveTurn | None:
        return self._turns[0] if self._turns else None

    # --- joining and leaving ---------------------------------------------------------------------

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
        if len(shown) or gateway.is_used:  # a new conversation has nothing to catch up on
            self._transcripts.join(connection, shown)

    def _hint(self, connection: Connection, recovering: bool) -> None:
        if recovering:
            connection.send(frames.frame(frames.RECOVERING, recovering=True))

    def leave(self, connection: Connection) -> None:
        self._transcripts.leave(connection)
        if not self._room.connections and self._task is not None:
            self._task.cancel()
            self._task = None
            self._turns.clear()

    def _offer(self, connection: Connection, id: str, probe: str | None = None) -> None:
        connection.offered, connection.parked, connection.probing = id, False, False
        connection.send(frames.frame(frames.RESUMING, id=id, probeId=probe))

    # --- notices ---------------------------------------------------------------------------------

    def hear(self, notice: Notice) -> None:
        match notice:
            case Accepted(request_id=id, kind="message", shown=shown):
                owner = self.owners.get(id)
                self._transcripts.send(shown(), self._room.connections, owner=owner)
            case Accepted(request_id=id, kind="continue"):
                self.continuations.add(id)
            case Started(stream=stream):
                if all(live.stream is not stream for live in self._turns):  # not another attempt
                    self._follow(notice)
            case Ended(request_id=id):
                live = next((each for each in self._turns if each.id == id), None)
                if live is not None:  # ends once its last chunks are sent
                    live.ended = notice
                else:
                    self._end_unseen(notice)
            case MessageUpdated(message=message):
                self._room.send(frames.message_updated(self._view.message(message)))
            case TranscriptChanged(shown=shown):
                self._transcripts.send(shown(), self._room.connections)
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
        live = LiveTurn(started, self._view)
        live.at = at
        self._turns.append(live)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._broadcast(), name="chat room")

    def send_transcript(self, connection: Connection, gateway: ChatGateway) -> None:
        """Send one connection the current conversation."""
        self._transcripts.send(gateway.messages(), [connection])

    def _find(self, started: Started | None) -> None:
        """Follow a turn that began before anyone connected, or that is about to be broadcast."""
        if started is not None and self.live is None:
            self._follow(started, at=len(started.stream.chunks))

    def _offer_parked(self, live: LiveTurn) -> None:
        for connection in self._room.connections:
            if connection.parked:
                self._offer(connection, live.id)

    async def _broadcast(self) -> None:
        """Broadcast each turn to its end, one after another."""
        try:
            while self._turns:
                live = self._turns[0]
                async for seq, chunks in live.stream.batches(live.at):
                    self._broadcast_chunks(live, seq, chunks)
                self._turns.popleft()
                if live.ended is None:  # the agent left this host, the turn has not ended
                    self._room.send_away(TRY_AGAIN)
                    return
                self._end(live, live.ended.end)
        finally:
            if self._task is asyncio.current_task():  # unless another task took over
                self._task = None

    def _broadcast_chunks(self, live: LiveTurn, seq: int, chunks: Sequence[str]) -> None:
        self._offer_parked(live)
        following = [each for each in self._room.connections if each.offered != live.id]
        live.followers = set(following) if not seq else (live.followers or set()) & set(following)
        sent: list[Frame] = []
        size = 0
        for chunk in chunks:
            text = live.chunk(seq, chunk)
            if text is not None:
                sent.append(Frame(text))
                size += len(text)
            seq += not isinstance(chunk, Transient)
        for connection in following:
            connection.send_all(sent, size)
        live.at = seq

    # --- ends ------------------------------------------------------------------------------------

    def _end(self, live: LiveTurn, end: TurnEnd) -> None:
        """Send the transcript first, because users start to type when the turn is over."""
        for connection in self._room.connections:
            if connection.offered == live.id:
                connection.offered = None
        shown = live.shown()
        if end.status == "aborted":
            self._heal(shown)
        last = terminal(live.frames, end, live.stream.chunks, live.message_ids)
        followers = live.followers or () if end.status == "completed" else ()
        # Clients may have built a message of a cleared turn; the transcript then removes it.
        if live.is_cleared:
            self._room.send(last)
        self._transcripts.send(shown, self._room.connections, followers=followers)
        if not live.is_cleared:
            self._room.send(last)
        self._forget(live.id)
        self._unpark()

    def _heal(self, shown: Shown) -> None:
        """Send the last answer to clients that keep their own copy, whatever the transcript contains.

        A client that stopped the turn shows the answer without the text that was still in flight; a client
        that saw it break off shows it as still streaming.
        """
        if shown.answer is not None:
            self._room.send(frames.message_updated(self._view.message(shown.answer)))

    def _end_unseen(self, ended: Ended) -> None:
        """A turn that never began, or that began in another process and was interrupted."""
        responses = Responses(ended.request_id, continuation=ended.continuation)
        shown = ended.shown()
        self._transcripts.send(shown, self._room.connections)
        self._room.send(terminal(responses, ended.end, ended.chunks, ended.message_ids))
        if ended.end.status == "interrupted":
            self._heal(shown)
        self._forget(ended.request_id)
        self._unpark()

    def _forget(self, id: str) -> None:
        self.owners.pop(id, None)
        self.continuations.discard(id)

    def _unpark(self) -> None:
        """End the wait of parked connections: the turn they waited for did not start.

        Connections that did not probe receive nothing: they would mistake it for the response to a later
        probe.
        """
        if self.live is None:
            for connection in self._room.connections:
                if connection.probing:
                    connection.send(frames.frame(frames.RESUME_NONE))
                connection.parked = connection.probing = False

    # --- resuming --------------------------------------------------------------------------------

    def announce(self, id: str, owner: Connection) -> None:
        """Announce a continuation to the connection whose answer triggered it."""
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
        """Respond to a client that asks whether there is something to resume.

        `just_asked`: a request that the same client sent together with this probe, as a client does that
        sends a message while it mounts. It reads that answer, which must not arrive twice.
        """
        started, waiting, failed, recovering = gateway.situation()
        self._hint(connection, recovering)  # the hint sent on connect may have come too early
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
        """Return whether this client is still connected, possibly with another socket."""
        mine = (each for each in self._room.connections if each.id == owner.id)
        return any(not each.is_closing for each in mine)

    async def resume(self, connection: Connection, id: str, gateway: ChatGateway) -> None:
        """Send a client the stream that it was offered."""
        started, waiting, _, _ = gateway.situation()
        self._find(started)
        live = next((each for each in self._turns if each.id == id), None)
        if connection.is_replaying(id):
            return  # already being sent
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
        if end.status != "completed":  # the turn broke off with open parts
            message = None if end.message is None else end.message.raw
            chunks = [*chunks, *closing(chunks, message)]
        connection.send_each(
            id,
            (
                responses.chunk(seq, self._view.chunk(chunk, message_id), replay=True)
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
    """Return the frame that ends a request."""
    if end.status in ("error", "interrupted"):
        return responses.error(error_of(chunks), message_ids=message_ids)
    return responses.done(outcome=_OUTCOMES.get(end.status), message_ids=message_ids)


def error_of(chunks: Sequence[str]) -> str:
    """Return the error message that a turn showed; never the one that is only in the log."""
    for chunk in reversed(chunks):
        if chunk.startswith('{"type":"error"'):
            return str(json.decode(chunk).get("errorText") or "An error occurred.")
    return "An error occurred."
