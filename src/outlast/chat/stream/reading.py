"""The streams of one agent: of what is open, and of what has ended as far as it is still kept."""

from __future__ import annotations

from weakref import WeakValueDictionary

from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.results import Message, TurnEnd
from outlast.chat.stream import sql as stream_rows
from outlast.chat.stream.stream import Stream, chunks_of
from outlast.chat.transcript.transcript import Transcript
from outlast.host.life.activation import Activation


class Streams:
    """One for each request."""

    def __init__(self, activation: Activation, transcript: Transcript) -> None:
        self._agent = activation.address.text
        self._store = activation.store
        self._flush = activation.flush
        self._transcript = transcript
        self.open: dict[str, Stream] = {}  # by request id
        self._read: WeakValueDictionary[str, Stream] = WeakValueDictionary()  # stored, while read

    def of(self, entry: EntryRow) -> Stream:
        """The stream of an entry that has not ended: also of one whose turn has not begun."""
        stream = self.open.get(entry.id)
        if stream is None:
            stream = self.open[entry.id] = Stream(self._agent, entry.id, flush=self._flush)
        return stream

    async def stored(self, entry: EntryRow) -> Stream:
        """The stream of one that has ended, as far as it is still kept."""
        known = self._read.get(entry.id)
        if known is not None:
            return known
        stream = Stream(self._agent, entry.id, chunks=await self.chunks(entry.id))
        stream.close(await self.end_of(entry))
        self._read[entry.id] = stream
        return stream

    async def end_of(self, entry: EntryRow) -> TurnEnd:
        """How an entry that has ended did so."""
        message = None
        if entry.message_id is not None:
            message = await self._transcript.get(entry.message_id)
        return TurnEnd(
            entry.outcome or "error", None if message is None else Message(message), entry.error
        )

    async def chunks(self, id: str) -> list[str]:
        """What is stored of a request, in order."""
        found = await self._store.fetch(stream_rows.OF_TURN, self._agent, id)
        return chunks_of((seq, body) for seq, _, body in found)
