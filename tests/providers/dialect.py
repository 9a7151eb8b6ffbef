"""What the providers' dialects have in common, so that a test can be about all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_ai.models import Model

from providers.server import Reply


@dataclass
class Call:
    id: str
    tool: str
    arguments: dict[str, Any]


@dataclass
class Answer:
    """What the model says, before it is put in a provider's words."""

    text: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    signature: str = "c2lnbmF0dXJl"  # base64, as Gemini wants it
    calls: tuple[Call, ...] = ()


class Dialect(Protocol):
    name: str

    def model(self, url: str) -> Model: ...

    def events(self, answer: Answer, *, finished: bool = True) -> list[bytes]:
        """The answer as events; not `finished`: without the ones that say that it is over."""
        ...

    def error(self, kind: str) -> Reply | None:
        """A refusal of this kind, if the provider has one."""
        ...

    def error_event(self) -> bytes:
        """That it is overloaded, said in the middle of a stream."""
        ...

    def check(self, body: Any) -> None:
        """Fail unless the provider would take this request."""
        ...

    def signatures(self, body: Any) -> list[str]:
        """The signatures of thoughts that the request holds."""
        ...
