"""Limits on what a server accepts from clients and sends to them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from outlast.core.clock import seconds

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes are in bytes or characters.

    A client that exceeds a limit gets an error, and nothing is stored.
    """

    frame: int = (
        64 * MIB
    )  # one WebSocket frame or HTTP body, including the history that clients repeat
    body: int = 4 * MIB  # the new part of a frame or an HTTP body
    message: int = MIB  # one message
    messages: int = 100  # new messages in one request
    pending: int = 100  # unanswered requests of one agent
    connections: int = 10_000  # sockets and event streams of the whole server
    connections_per_agent: int = 1000
    calls: int = 256  # RPC calls of one connection at a time
    transcript: int = 4 * MIB  # newest messages sent to a client, which can fetch older ones
    transcript_messages: int = 1000  # the same limit as a count
    inline: int = 256 * KIB  # one tool output or file; of a larger one, a client receives the URL
    buffer: int = 8 * MIB  # queued behind the frame that is being sent to a connection
    unsent: int = 256 * MIB  # not yet read by all connections together
    # Time without progress after which a slow connection is dropped.
    stall: float | timedelta = 30.0
    headers_within: float | timedelta = 10.0  # for the headers of a request (with `outlast serve`)
    # For the body of a request, plus one second for each 16 KiB received.
    body_within: float | timedelta = 30.0

    def __post_init__(self) -> None:
        for name in ("stall", "headers_within", "body_within"):
            seconds(getattr(self, name), name)

    def shown(self) -> dict[str, int]:
        """Return the limits that clients need to know, for their first frame."""
        names = ("frame", "body", "message", "messages")
        return {name: getattr(self, name) for name in names}
