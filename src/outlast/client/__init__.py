"""A client in Python: talk to an agent over its WebSocket, and resume after a lost connection.

**What it promises.** Iterating over an answer yields each chunk once and in order, across restarts of the
server. A message, tool result or approval counts once, even if it was sent twice. A message that is too
large fails its own caller only.

It speaks the protocol of `outlast.server` and needs nothing of the agents: it may import `core` only. Start
with `client`, which applications use. `connection` keeps the WebSocket open, `request` follows a turn,
`transcript` keeps the messages; `outgoing` knows what is too large, and `fetcher` fetches over HTTP what a
socket does not carry.
"""

from outlast.client.client import Client
from outlast.client.errors import CallFailed, Closed, MessageTooLarge, Refused, TurnFailed

__all__ = ["CallFailed", "Client", "Closed", "MessageTooLarge", "Refused", "TurnFailed"]
