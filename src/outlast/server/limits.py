"""What a server takes from its clients, and no more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes are in bytes or characters; a client that asks for more is told so, and nothing is stored."""

    frame: int = 4 * 1024 * 1024  # of one WebSocket frame, and of the body of an HTTP request
    message: int = 1024 * 1024  # of one message
    messages: int = 100  # new ones in one request
    pending: int = 100  # requests of one agent that are not answered yet
    connections_per_agent: int = 1000
    calls: int = 256  # RPC calls of one connection at a time
    buffer: int = 8 * 1024 * 1024  # that may wait for a slow reader before it is dropped
