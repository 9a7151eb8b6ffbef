"""What a client raises."""

from __future__ import annotations

from outlast.core.errors import TurnFailed

__all__ = ["CallFailed", "Closed", "MessageTooLarge", "Refused", "TurnFailed"]


class Refused(Exception):
    """The server does not want this client, and said so for good."""


class Closed(Exception):
    """The client was closed before that was over."""


class MessageTooLarge(TurnFailed):
    """The server does not accept a message of this size. It was not stored, and is not sent again."""


class CallFailed(Exception):
    """A call raised on the server, or could not be made; or the server could not give what was fetched."""
