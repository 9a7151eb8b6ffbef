"""Conversations that are too long for the model: the settings, and the request to shorten one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

OverflowReason = Literal["reactive", "proactive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProactiveCompaction:
    """Compact the conversation before a step, once the previous step came near the limit."""

    max_input_tokens: int
    headroom: float = 0.9
    max_compactions: int = 1  # in one turn

    def is_near(self, usage: Any) -> bool:
        used = getattr(usage, "input_tokens", 0) or getattr(usage, "total_tokens", 0) or 0
        return bool(used >= self.max_input_tokens * self.headroom)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOverflow:
    """What to do if the conversation is too long for the model. Requires `on_compaction`.

    ```python
    from outlast import ContextOverflow, Session, Think, summarise

    class Assistant(Think):
        model = "anthropic:claude-sonnet-5"
        context_overflow = ContextOverflow(reactive=True)

        def configure_session(self, session: Session) -> Session:
            return session.on_compaction(summarise("anthropic:claude-haiku-4-5"))
    ```
    """

    reactive: bool = False  # after the model rejected the request
    max_retries: int = 1
    proactive: ProactiveCompaction | None = None

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ValueError(f"max_retries must not be negative, got {self.max_retries}")

    @property
    def is_on(self) -> bool:
        return self.reactive or self.proactive is not None


@dataclass(frozen=True, slots=True)
class Overflow:
    """A conversation that is too long for the model, or nearly so."""

    path: Sequence[dict[str, Any]]  # before the answer of the running turn
    reason: OverflowReason
    request_id: str
    attempt: int  # of this turn
