"""Frames to the server, and whether the server accepts their size. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from outlast.client.errors import MessageTooLarge
from outlast.core import json

ADVICE = "Send less, or raise the `Limits` of the server."


def frame(kind: str, **fields: Any) -> str:
    """Return a frame as JSON."""
    return json.encode({"type": kind, **fields}, "frame")


@dataclass(eq=False)
class OutgoingFrame:
    """A frame for the server, and what it is about."""

    about: str
    text: str
    on_refused: Callable[[MessageTooLarge], None] = lambda _: None
    body: int = 0  # bytes of its new content
    message: int = 0  # bytes of its message
    refused: MessageTooLarge | None = None

    def refuse(self, error: MessageTooLarge) -> None:
        """Fail it because of its size: notify its sender, and do not send it again."""
        self.refused = error
        self.on_refused(error)

    @cached_property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return len(self.text.encode())


@dataclass(frozen=True)
class Limits:
    """The server's limits in bytes, from its first frame; None: unknown."""

    frame: int | None = None
    body: int | None = None
    message: int | None = None

    @classmethod
    def of(cls, identity: Mapping[str, Any]) -> Limits:
        """Return the limits in the first frame of a connection."""
        given = identity.get("limits")
        known = given if isinstance(given, dict) else {}
        found = {name: known.get(name) for name in ("frame", "body", "message")}
        return cls(**{name: size for name, size in found.items() if isinstance(size, int)})

    def refusal(self, out: OutgoingFrame) -> MessageTooLarge | None:
        """Return why the server would not accept this frame, or None as far as known."""
        for what, size, limit in (
            ("The message", out.message, self.message),
            ("The new content of a request", out.body, self.body),
            ("A frame", out.size, self.frame),
        ):
            if limit is not None and size > limit:
                return MessageTooLarge(
                    f"{what} must be at most {limit} bytes, got {size}. {ADVICE}"
                )
        return None


def oversized_frame(in_flight: Iterable[OutgoingFrame]) -> OutgoingFrame | None:
    """Return the frame that a close with 1009 is about.

    The first oversized frame was the reason, and the largest one is at least as large. If they differ, the
    other one is refused when it is sent again.
    """
    return max(in_flight, key=lambda out: out.size, default=None)


def unknown_limit_error(out: OutgoingFrame) -> MessageTooLarge:
    """Return the error for a server that does not send its limits."""
    text = "The message must be smaller than the server's limit, which is unknown"
    return MessageTooLarge(f"{text} (close code 1009), got {out.size} bytes. {ADVICE}")
