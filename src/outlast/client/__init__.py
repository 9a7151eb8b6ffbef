"""A client in Python: talk to an agent over its WebSocket, and lose nothing when the connection is lost.

It speaks the protocol that `outlast.server` serves, and needs nothing else of outlast.
"""

from outlast.client.client import CallFailed, Client, Closed, Refused, TurnFailed

__all__ = ["CallFailed", "Client", "Closed", "Refused", "TurnFailed"]
