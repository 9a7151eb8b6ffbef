"""The streams of one agent: of open requests, and of ended ones while they are kept."""

from __future__ import annotations

from weakref import WeakValueDictionary

from outlast.agent.commit import Commit
from outlast.agent.part import Part, Parts
from outlast.chat.inbox.sql import KEEP_STREAMS, EntryRow
from outlast.chat.message.results import Message, TurnEnd
from outlast.chat.stream import sql as stream_rows
from outlast.chat.stream.stream import Stream, chunks_of
from outlast.chat.transcript.transcript import Transcript


class Streams(Part):
    """The streams of one agent, one per request."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._transcript = parts[Transcript]
        self.open: dict[str, Stream] = {}  # by request id
        self._read: WeakValueDictionary[str, Stream] = WeakValueDictionary()  # stored, while read

    def of(self, entry: EntryRow) -> Stream:
        """Return the stream of an open entry, whose turn may not have begun."""
        stream = self.open.get(entry.id)
        if stream is None:
            stream = self.open[entry.id] = Stream(
                self.address, entry.id, flush=self.activation.flush
            )
        return stream

    def drop_unread(self, id: str) -> None:
        """Drop an empty stream that has no readers."""
        stream = self.open.get(id)
        if stream is not None and not stream.chunks and not stream.is_read:
            del self.open[id]

    async def stored(self, entry: EntryRow) -> Stream:
        """Return the stream of an ended entry, with the chunks that are still kept."""
        known = self._read.get(entry.id)
        if known is not None:
            return known
        stream = Stream(self.address, entry.id, chunks=await self.chunks(entry.id))
        stream.close(await self.end_of(entry))
        self._read[entry.id] = stream
        return stream

    async def end_of(self, entry: EntryRow) -> TurnEnd:
        """Return how an ended entry ended."""
        message = None
        if entry.message_id is not None:
            message = await self._transcript.get(entry.message_id)
        return TurnEnd(
            entry.outcome or "error", None if message is None else Message(message), entry.error
        )

    async def chunks(self, id: str) -> list[str]:
        """Return the stored chunks of a request, in order."""
        found = await self.activation.store.fetch(stream_rows.OF_TURN, self.address, id)
        return chunks_of((seq, body) for seq, _, body in found)

    def expire(self, commit: Commit, now: int) -> None:
        commit.write((stream_rows.EXPIRE, (self.address, now - KEEP_STREAMS)))

    def cleared(self, commit: Commit) -> None:
        for stream in self.open.values():
            stream.mute()  # later chunks would be written after the clearing
        commit.write((stream_rows.CLEAR, (self.address,)))

    def leave(self, reason: Exception) -> None:
        for stream in self.open.values():
            stream.close()
