"""What the connections of a room were told of its conversation, and what they have to be told next.

A transcript frame replaces the list of a client. A client that asked for changes (`_delta=1`) gets only
what comes after the last message that is as it was told. The JavaScript hooks know no such frame: they get
the newest messages that fit, except at the end of a turn that they followed from its first chunk, when the
list is large and all that is new is the answer they have built.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

from outlast.chat.transcript.shown import Shown
from outlast.server.room.outgoing import Outgoing
from outlast.server.socket import frames
from outlast.server.socket.connection import Connection
from outlast.server.socket.line import Frame

REMEMBERED = 2000  # of the last messages that were told, what they said
SMALL = 64 * 1024  # characters; a transcript that is not larger is always sent


class Transcripts:
    """Of one room. Connections that have heard every change so far are in step."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._told = array("q")  # a hash for each message, oldest first
        self._hashed: tuple[Shown | None, array[int]] = (None, self._told)  # the last that was
        self._in_step: set[Connection] = set()

    def join(self, connection: Connection, shown: Shown) -> None:
        """Send a new connection the newest messages."""
        now = self._hashes(shown)
        if now != self._told:  # nobody was here to be told
            self._told = now
            self._in_step.clear()
        connection.send(self._whole(shown, connect=True))
        self._in_step.add(connection)

    def leave(self, connection: Connection) -> None:
        self._in_step.discard(connection)

    def tell(
        self,
        shown: Shown,
        connections: Sequence[Connection],
        *,
        owner: Connection | None = None,
        followers: Collection[Connection] = (),
    ) -> None:
        """Tell everybody what the conversation is now.

        `owner` has sent what is new in it, and is told so only if it takes changes: that is how it learns
        that its message was accepted. `followers` have built the answer that is new in it.
        """
        now = self._hashes(shown)
        same = _same(self._told, now)
        is_known = same is not None
        answer = followers if same is not None and self._is_just_an_answer(shown, now, same) else ()
        behind = len(shown) - len(now)  # messages that are too old to be remembered
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
                text = self._outgoing.message(shown.messages[-1], shown.stamps[-1])
                connection.send(frames.message_updated(text))
            else:
                whole = Frame(self._whole(shown)) if whole is None else whole
                connection.send(whole)
                self._in_step.add(connection)
        self._told = now

    def _is_just_an_answer(self, shown: Shown, now: array[int], same: int) -> bool:
        """Whether an answer was added and nothing else, to more than is sent without need."""
        is_added = same == len(now) - 1 and same > 0 and self._told[-1] == now[-2]
        is_answer = is_added and shown.messages[-1]["role"] == "assistant"
        return is_answer and sum(stamp.size for stamp in shown.stamps[-REMEMBERED:]) > SMALL

    def _hashes(self, shown: Shown) -> array[int]:
        if self._hashed[0] is not shown:
            found = array("q", [hash(stamp) for stamp in shown.stamps[-REMEMBERED:]])
            self._hashed = shown, found
        return self._hashed[1]

    def _whole(self, shown: Shown, *, connect: bool = False) -> str:
        window = self._outgoing.window(shown)
        return frames.transcript(window.text, connect=connect, earlier=window.has_earlier)

    def _change(self, shown: Shown, same: int) -> str:
        after = shown.messages[same - 1]["id"]
        pairs = zip(shown.messages[same:], shown.stamps[same:], strict=True)
        texts = [self._outgoing.message(message, stamp) for message, stamp in pairs]
        return frames.transcript(f"[{','.join(texts)}]", after=after)


def _same(told: array[int], now: array[int]) -> int | None:
    """How many messages of `now`, from its first on, are as they were told; None: that is not known.

    Both are the last messages of a conversation, and either may begin before the other: older messages were
    loaded into memory since, or newer ones have pushed out the oldest that are remembered.
    """
    if not told or not now:
        return None
    if told[0] in now:
        at, since = now.index(told[0]), 0
    elif now[0] in told:
        at, since = 0, told.index(now[0])
    else:
        return None
    pairs = zip(told[since:], now[at:], strict=False)
    return at + next(
        (place for place, (was, new) in enumerate(pairs) if was != new),
        min(len(told) - since, len(now) - at),
    )
