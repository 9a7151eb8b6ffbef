"""The exceptions of a client."""

from __future__ import annotations

from outlast.core.errors import TurnFailed

__all__ = ["CallFailed", "Closed", "MessageTooLarge", "Refused", "TurnFailed"]


class Refused(Exception):
    """The server refused this client for good."""


class Closed(Exception):
    """The client was closed before this completed."""


class MessageTooLarge(TurnFailed):
    """The server does not accept a message of this size. It was not stored, and is not sent again."""


class CallFailed(Exception):
    """A call raised on the server or was not made, or a fetch failed."""
