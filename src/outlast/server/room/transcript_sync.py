"""Tracks which messages the connections of a room received, and sends them the changes.

A transcript frame replaces the list of a client. A client that asked for changes (`_delta=1`) receives only
the messages after the last unchanged one. The JavaScript hooks do not know such frames: they receive the
newest messages that fit, except at the end of a turn that they followed from its first chunk, when the list
is large and only the answer is new, which they already built.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

from outlast.chat.transcript.shown import Shown
from outlast.server.room.client_view import ClientView
from outlast.server.socket import frames
from outlast.server.socket.connection import Connection
from outlast.server.socket.transport import Frame

REMEMBERED = 2000  # hashes of the last messages that were sent
SMALL = 64 * 1024  # characters; a transcript up to this size is always sent


class TranscriptSync:
    """The transcripts of one room. Connections that received every change so far are in step."""

    def __init__(self, view: ClientView) -> None:
        self._view = view
        self._sent = array("q")  # a hash for each message, oldest first
        self._hashed: tuple[Shown | None, array[int]] = (
            None,
            self._sent,
        )  # the last one that was hashed
        self._in_step: set[Connection] = set()

    def join(self, connection: Connection, shown: Shown) -> None:
        """Send a new connection the newest messages."""
        now = self._hashes(shown)
        if now != self._sent:  # it changed while no one was connected
            self._sent = now
            self._in_step.clear()
        connection.send(self._whole(shown, connect=True))
        self._in_step.add(connection)

    def leave(self, connection: Connection) -> None:
        self._in_step.discard(connection)

    def send(
        self,
        shown: Shown,
        connections: Sequence[Connection],
        *,
        owner: Connection | None = None,
        followers: Collection[Connection] = (),
    ) -> None:
        """Send the current conversation to the connections.

        `owner` sent the new message itself, and receives it only if it takes changes, which tells it that
        the message was accepted. `followers` already built the new answer from chunks.
        """
        now = self._hashes(shown)
        same = _same(self._sent, now)
        is_known = same is not None
        answer = followers if same is not None and self._is_just_an_answer(shown, now, same) else ()
        behind = len(shown) - len(now)  # messages too old to be hashed
        change: Frame | None = None
        whole: Frame | None = None
        for connection in connections:
            is_in_step = is_known and connection in self._in_step
            if connection.takes_changes and is_in_step and same is not None:
                if change is None:
                    change = Frame(self._change(shown, behind + same))
                connection.send(change)
            elif connection is owner and not connection.takes_changes:
                continue  # in step or not, as before
            elif is_in_step and connection in answer:
                text = self._view.message(shown.messages[-1], shown.stamps[-1])
                connection.send(frames.message_updated(text))
            else:
                whole = Frame(self._whole(shown)) if whole is None else whole
                connection.send(whole)
                self._in_step.add(connection)
        self._sent = now

    def _is_just_an_answer(self, shown: Shown, now: array[int], same: int) -> bool:
        """Return whether only an answer was added, to a transcript too large to send needlessly."""
        is_added = same == len(now) - 1 and same > 0 and self._sent[-1] == now[-2]
        is_answer = is_added and shown.messages[-1]["role"] == "assistant"
        return is_answer and sum(stamp.size for stamp in shown.stamps[-REMEMBERED:]) > SMALL

    def _hashes(self, shown: Shown) -> array[int]:
        if self._hashed[0] is not shown:
            found = array("q", [hash(stamp) for stamp in shown.stamps[-REMEMBERED:]])
            self._hashed = shown, found
        return self._hashed[1]

    def _whole(self, shown: Shown, *, connect: bool = False) -> str:
        window = self._view.window(shown)
        return frames.transcript(window.text, connect=connect, earlier=window.has_earlier)

    def _change(self, shown: Shown, same: int) -> str:
        after = shown.messages[same - 1]["id"]
        pairs = zip(shown.messages[same:], shown.stamps[same:], strict=True)
        texts = [self._view.message(message, stamp) for message, stamp in pairs]
        return frames.transcript(f"[{','.join(texts)}]", after=after)


def _same(sent: array[int], now: array[int]) -> int | None:
    """Return how many messages of `now`, from its first on, are unchanged; None if unknown.

    Both are the last messages of a conversation, and either may begin before the other: older messages were
    loaded into memory since, or newer ones pushed out the oldest hashes.
    """
    if not sent or not now:
        return None
    if sent[0] in now:
        at, since = now.index(sent[0]), 0
    elif now[0] in sent:
        at, since = 0, sent.index(now[0])
    else:
        return None
    pairs = zip(sent[since:], now[at:], strict=False)
    return at + next(
        (place for place, (was, new) in enumerate(pairs) if was != new),
        min(len(sent) - since, len(now) - at),
    )
