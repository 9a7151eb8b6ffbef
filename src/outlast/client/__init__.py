"""A client in Python: talk to an agent over its WebSocket, and lose nothing when the connection is lost.

It speaks the protocol that `outlast.server` serves, and needs nothing of the agents. `client` is what an
application uses; start reading there. `line` keeps the connection, `following` a turn, `transcript` the
messages; `sending` knows what is too large, and `fetching` gets over HTTP what a socket does not carry.
"""

from outlast.client.client import Client
from outlast.client.errors import CallFailed, Closed, MessageTooLarge, Refused, TurnFailed

__all__ = ["CallFailed", "Client", "Closed", "MessageTooLarge", "Refused", "TurnFailed"]
