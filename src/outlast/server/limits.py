"""What a server accepts from its clients, and what it sends them at most."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from outlast.core.clock import seconds

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes are in bytes or characters. A client that exceeds one gets an error, and nothing is stored."""

    frame: int = 64 * MIB  # one WebSocket frame or HTTP body, with the history that clients repeat
    body: int = 4 * MIB  # what a frame or an HTTP body brings that is new
    message: int = MIB  # one message
    messages: int = 100  # new messages in one request
    pending: int = 100  # requests of one agent that are not answered yet
    connections: int = 10_000  # sockets and event streams of the whole server
    connections_per_agent: int = 1000
    calls: int = 256  # RPC calls of one connection at a time
    transcript: int = 4 * MIB  # the newest messages that a client is sent; it can fetch older ones
    transcript_messages: int = 1000  # the same, counted
    inline: int = 256 * KIB  # one tool output or file; a client is sent the URL of a larger one
    buffer: int = 8 * MIB  # what may wait behind the frame that a connection is being sent
    unsent: int = 256 * MIB  # what all connections together have not read yet
    # Time without reading anything after which a connection is dropped.
    stall: float | timedelta = 30.0
    headers_within: float | timedelta = 10.0  # for the headers of a request (with `outlast serve`)
    # For its body, and one second more for each 16 KiB that have arrived.
    body_within: float | timedelta = 30.0

    def __post_init__(self) -> None:
        for name in ("stall", "headers_within", "body_within"):
            seconds(getattr(self, name), name)

    def shown(self) -> dict[str, int]:
        """What clients have to know, for their first frame."""
        names = ("frame", "body", "message", "messages")
        return {name: getattr(self, name) for name in names}
