"""One answer of a `ScriptedModel`, piece by piece: `Step`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
)
from pydantic_ai.messages import FinishReason
from pydantic_ai.usage import RequestUsage

from outlast.core import clock, json

Failure = Literal["rate_limit", "overloaded", "connection", "context_overflow", "quota", "rejected"]
_CATEGORIES: dict[str, tuple[int, Any]] = {
    "rate_limit": (429, ModelRateLimitError),
    "overloaded": (529, ModelOverloadedError),
    "context_overflow": (400, ModelContextWindowExceededError),
    "quota": (402, ModelQuotaExceededError),
    "rejected": (400, ModelRequestRejectedError),
}


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    text: str | None
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float | None  # None: for ever


@dataclass(frozen=True, slots=True)
class Fault:
    error: BaseException


Piece = Text | Thought | Call | Wait | Fault


def words(text: str) -> list[str]:
    """The text in pieces of a word each, with the space that follows it.

    ```python
    from outlast.testing.steps import words
    assert words("Hello there, you") == ["Hello ", "there, ", "you"]
    ```
    """
    return re.findall(r"\s*\S+\s*", text) or ([text] if text else [])


@dataclass(frozen=True, slots=True)
class Step:
    """One answer of a `ScriptedModel`. Answers add up: `Step.reasoning("Hm.") + Step.text("Hello.")`."""

    pieces: tuple[Piece, ...] = ()
    finish_reason: FinishReason | None = None  # None: "tool_call" if it calls tools, else "stop"
    usage: RequestUsage | None = None  # None: counted by messages and pieces
    is_truncated: bool = False

    @classmethod
    def text(
        cls,
        text: str = "",
        *,
        chunks: Sequence[str] | None = None,
        delay: float | timedelta = 0,
        finish_reason: FinishReason | None = None,
        usage: RequestUsage | None = None,
    ) -> Step:
        """A text, word by word or in the given chunks, with a `delay` before each."""
        pieces = tuple(Text(chunk) for chunk in (words(text) if chunks is None else chunks))
        return cls(_delayed(pieces, delay), finish_reason, usage)

    @classmethod
    def reasoning(
        cls,
        text: str = "",
        *,
        chunks: Sequence[str] | None = None,
        delay: float | timedelta = 0,
        signature: str | None = "signature",
    ) -> Step:
        """Thoughts, in the same way. The signature comes at the end."""
        pieces = tuple(Thought(chunk) for chunk in (words(text) if chunks is None else chunks))
        signed = (Thought(None, signature),) if signature else ()
        return cls((*_delayed(pieces, delay), *signed))

    @classmethod
    def calls(cls, tool: str, /, **arguments: Any) -> Step:
        """A call of a tool."""
        return cls.call(tool, arguments)

    @classmethod
    def call(
        cls, tool: str, arguments: Mapping[str, Any] | str = "{}", *, id: str | None = None
    ) -> Step:
        """The same, with an id, or with arguments that are no valid JSON. Each call has an id of its own by
        default.
        """
        text = arguments if isinstance(arguments, str) else json.encode(dict(arguments))
        return cls((Call(tool, text, id),))

    @classmethod
    def fails(
        cls,
        error: BaseException | Failure = "overloaded",
        *,
        retry_after: float | timedelta | None = None,
    ) -> Step:
        """An error: one of yours, or one as a provider would send it. What comes before it in the answer
        arrives.
        """
        wait = None if retry_after is None else clock.seconds(retry_after, "retry_after")
        if isinstance(error, str):
            error = _provider_error(error, wait)
        return cls((Fault(error),))

    @classmethod
    def stalls(cls, seconds: float | timedelta | None = None) -> Step:
        """Silence: for so many seconds, or for ever."""
        return cls((Wait(None if seconds is None else clock.seconds(seconds, "seconds")),))

    @classmethod
    def truncated(cls, text: str = "", *, chunks: Sequence[str] | None = None) -> Step:
        """A text whose stream breaks off without an end."""
        return replace(cls.text(text, chunks=chunks), is_truncated=True)

    def __add__(self, other: Step | str) -> Step:
        other = Step.text(other) if isinstance(other, str) else other
        return Step(
            (*self.pieces, *other.pieces),
            other.finish_reason or self.finish_reason,
            other.usage or self.usage,
            self.is_truncated or other.is_truncated,
        )

    def without(self, start: str) -> Step:
        """The rest of this answer for somebody who has this much of its text."""
        text = "".join(piece.text for piece in self.pieces if isinstance(piece, Text))
        if not text.startswith(start):
            return self
        known, rest = len(start), list(self.pieces)
        while known:
            piece = rest.pop(0)
            if isinstance(piece, Text):
                if len(piece.text) > known:
                    rest.insert(0, Text(piece.text[known:]))
                known -= min(known, len(piece.text))
        return replace(self, pieces=tuple(rest))


def _delayed(pieces: tuple[Piece, ...], delay: float | timedelta) -> tuple[Piece, ...]:
    wait = clock.seconds(delay, "delay")
    if not wait:
        return pieces
    return tuple(item for piece in pieces for item in (Wait(wait), piece))


def _provider_error(kind: str, retry_after: float | None) -> ModelAPIError:
    if kind == "connection":
        return ModelConnectionError("scripted", "connection lost", phase="read")
    status, category = _CATEGORIES[kind]
    return ModelHTTPError.for_category(
        category,
        status_code=status,
        model_name="scripted",
        body={"error": {"message": kind}},
        retry_after=retry_after,
    )
