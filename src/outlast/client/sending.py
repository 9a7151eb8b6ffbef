"""What is on its way to the server, and whether the server accepts anything that large. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from outlast.client.errors import MessageTooLarge
from outlast.core import json

ADVICE = "Send less, or raise the `Limits` of the server."


def frame(kind: str, **fields: Any) -> str:
    """The text of a frame."""
    return json.encode({"type": kind, **fields}, "frame")


@dataclass(eq=False)
class Outgoing:
    """A frame for the server, and what it is about."""

    about: str
    text: str
    on_refused: Callable[[MessageTooLarge], None] = lambda _: None
    body: int = 0  # bytes of what it brings that is new
    message: int = 0  # bytes of its message
    refused: MessageTooLarge | None = None

    def refuse(self, error: MessageTooLarge) -> None:
        """It is too large: it is not sent again, and its sender is notified."""
        self.refused = error
        self.on_refused(error)

    @cached_property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return len(self.text.encode())


@dataclass(frozen=True)
class Limits:
    """What the server accepts, in bytes, as its first frame says; None: it does not say."""

    frame: int | None = None
    body: int | None = None
    message: int | None = None

    @classmethod
    def of(cls, identity: Mapping[str, Any]) -> Limits:
        """Those in the first frame of a connection."""
        given = identity.get("limits")
        known = given if isinstance(given, dict) else {}
        found = {name: known.get(name) for name in ("frame", "body", "message")}
        return cls(**{name: size for name, size in found.items() if isinstance(size, int)})

    def refusal(self, out: Outgoing) -> MessageTooLarge | None:
        """Why the server would not accept this; None: it would, as far as is known."""
        for what, size, limit in (
            ("The message", out.message, self.message),
            ("What a request brings", out.body, self.body),
            ("A frame", out.size, self.frame),
        ):
            if limit is not None and size > limit:
                return MessageTooLarge(
                    f"{what} must be at most {limit} bytes, got {size}. {ADVICE}"
                )
        return None


def condemned(in_flight: Iterable[Outgoing]) -> Outgoing | None:
    """Which frame a close with 1009 is about.

    The first one that is too large was the reason, and the largest one cannot be smaller than that. If they
    are not the same, the other one is refused when it is sent again.
    """
    return max(in_flight, key=lambda out: out.size, default=None)


def closed_for(out: Outgoing) -> MessageTooLarge:
    """What a server means that does not tell its limits."""
    text = "The message must be smaller than the server's limit, which it does not tell"
    return MessageTooLarge(f"{text} (close code 1009), got {out.size} bytes. {ADVICE}")
