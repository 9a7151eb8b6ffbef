"""A conversation that is too long for the model: shortened, and asked again. What is stored stays whole."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outlast.agent.part import Part, Parts
from outlast.agent.state.facts import Facts
from outlast.chat.message.results import Message
from outlast.chat.types import events
from outlast.core import json
from outlast.core.hooks import call_hook

logger = logging.getLogger("outlast.chat")

COMPACTION = "chat:compaction"  # the fact that says up to where the conversation is a summary
KEPT = 4  # messages at the end that stay as they are, at most
HEADING = "Summary of the conversation so far:"
FIXED_PART = (
    "The system prompt, the tools and the last message alone are too long for the model: there is nothing"
    " left to shorten."
)

Compacting = Callable[[Sequence[Message]], Any]
"""Given messages, returns a text that stands for them, or None if it cannot. May be async."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProactiveCompaction:
    """Shorten the conversation before a step, once the one before it came near to the limit."""

    max_input_tokens: int
    headroom: float = 0.9
    max_compactions: int = 1  # in one turn

    def is_near(self, usage: Any) -> bool:
        used = getattr(usage, "input_tokens", 0) or getattr(usage, "total_tokens", 0) or 0
        return bool(used >= self.max_input_tokens * self.headroom)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOverflow:
    """What is done when the conversation is too long for the model. All of it needs `on_compaction`.

    ```python
    from outlast import ContextOverflow, Session, Think, summarise

    class Assistant(Think):
        model = "anthropic:claude-sonnet-4-5"
        context_overflow = ContextOverflow(reactive=True)

        def configure_session(self, session: Session) -> Session:
            return session.on_compaction(summarise("anthropic:claude-haiku-4-5"))
    ```
    """

    reactive: bool = False  # after the model has refused
    max_retries: int = 1
    proactive: ProactiveCompaction | None = None

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ValueError("max_retries is not negative")


class Compactions(Part):
    """How much of one agent's conversation is shown as a summary."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._facts = parts[Facts]
        self.function: Compacting | None = None  # what `on_compaction` was given

    def shown(self, path: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The conversation as the model sees it."""
        return self._shown(path, self._facts.get(COMPACTION, None, None))

    def _shown(self, path: Sequence[dict[str, Any]], record: Any) -> list[dict[str, Any]]:
        if not isinstance(record, Mapping):
            return list(path)
        ids = [message.get("id") for message in path]
        until, summary = record.get("until"), record.get("summary")
        if until not in ids or not isinstance(summary, str):
            return list(path)
        text = f"{HEADING}\n\n{summary}"
        head = {"id": f"summary-{until}", "role": "user", "parts": [{"type": "text", "text": text}]}
        return [head, *path[ids.index(until) + 1 :]]

    async def compact(
        self,
        path: Sequence[dict[str, Any]],
        reason: Literal["reactive", "proactive"],
        request_id: str,
        attempt: int,
    ) -> bool:
        """Put a summary in the place of what is old. False: it did not get shorter by that."""
        shortened = False
        try:
            shortened = await self._compacted(path)
        except Exception:  # the conversation is as long as it was
            logger.exception("%s: the conversation could not be shortened", self.address)
        self.activation.events.emit(
            events.ContextCompacted,
            self.address,
            request_id,
            reason=reason,
            shortened=shortened,
            attempt=attempt,
        )
        return shortened

    async def _compacted(self, path: Sequence[dict[str, Any]]) -> bool:
        before = self.shown(path)
        cut = _cut(before)
        if self.function is None or cut == 0:
            return False
        old = [Message(message) for message in before[:cut]]
        summary = await call_hook(self.function, old)
        if summary is None:
            return False
        if not isinstance(summary, str):
            raise TypeError(f"a compaction returns a text or None, not {summary!r}")
        record = {"until": before[cut - 1]["id"], "summary": summary}
        if _size(self._shown(path, record)) >= _size(before):
            return False
        await self._facts.set(COMPACTION, json.encode(record))
        return True

    def can_shorten(self, path: Sequence[dict[str, Any]]) -> bool:
        """Whether anything is old enough to be left out."""
        return _cut(self.shown(path)) > 0


def _cut(shown: Sequence[dict[str, Any]]) -> int:
    """How many messages at the beginning may become a summary; what is kept begins with the user."""
    users = [n for n, message in enumerate(shown) if message.get("role") == "user"]
    recent = [n for n in users if n >= len(shown) - KEPT] or users[-1:]
    cut = recent[0] if recent else 0
    is_summary_alone = cut == 1 and str(shown[0].get("id")).startswith("summary-")
    return 0 if is_summary_alone else cut


def _size(messages: Sequence[dict[str, Any]]) -> int:
    return sum(len(json.encode(each, "message", json.MAX_DEPTH + 10)) for each in messages)


def summarise(model: Any, *, words: int = 300) -> Compacting:
    """A compaction that asks a model for a summary.

    ```python
    from outlast import Session, summarise

    session = Session().on_compaction(summarise("openai:gpt-5-mini", words=200))
    ```
    """

    async def summary(messages: Sequence[Message]) -> str | None:
        from pydantic_ai.direct import model_request
        from pydantic_ai.messages import ModelRequest

        from outlast.chat.model.client import resolve

        said = "\n\n".join(f"{each.role}: {each.text}" for each in messages if each.text)
        wish = (
            f"Summarise this conversation in at most {words} words. Keep every fact, name, number and"
            f" decision that somebody who goes on with it needs.\n\n{said}"
        )
        answer = await model_request(resolve(model), [ModelRequest.user_text_prompt(wish)])
        return answer.text or None

    return summary
