"""Compaction of a conversation that is too long for the model. Stored messages are not changed."""

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

COMPACTION = "chat:compaction"  # the fact with the summary and the last message that it covers
KEPT = 4  # messages at the end that are not summarised, at most
HEADING = "Summary of the conversation so far:"
FIXED_PART = (
    "The system prompt, the tools and the last message alone are too long for the model: there is nothing"
    " left to summarise."
)

CompactionFunction = Callable[[Sequence[Message]], Any]
"""Takes messages, returns a summary of them, or None if it cannot. May be async."""


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


class Compactions(Part):
    """The compaction of one agent's conversation."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._facts = parts[Facts]
        self.function: CompactionFunction | None = None  # set by `on_compaction`

    def shown(self, path: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the conversation as the model sees it."""
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
        """Replace old messages with a summary. Returns whether the conversation became shorter."""
        shortened = False
        try:
            shortened = await self._compacted(path)
        except Exception:  # the conversation stays as it is
            logger.exception("%s: cannot compact the conversation", self.address)
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
            raise TypeError(f"a compaction function must return a str or None, got {summary!r}")
        record = {"until": before[cut - 1]["id"], "summary": summary}
        if _size(self._shown(path, record)) >= _size(before):
            return False
        await self._facts.set(COMPACTION, json.encode(record))
        return True

    def can_shorten(self, path: Sequence[dict[str, Any]]) -> bool:
        """Return whether any message is old enough to be summarised."""
        return _cut(self.shown(path)) > 0


def _cut(shown: Sequence[dict[str, Any]]) -> int:
    """Return how many messages at the beginning may be summarised; the rest begins with the user."""
    users = [n for n, message in enumerate(shown) if message.get("role") == "user"]
    recent = [n for n in users if n >= len(shown) - KEPT] or users[-1:]
    cut = recent[0] if recent else 0
    is_summary_alone = cut == 1 and str(shown[0].get("id")).startswith("summary-")
    return 0 if is_summary_alone else cut


def _size(messages: Sequence[dict[str, Any]]) -> int:
    return sum(len(json.encode(each, "message", json.MAX_DEPTH + 10)) for each in messages)


def summarise(model: Any, *, words: int = 300) -> CompactionFunction:
    """Return a compaction function that asks a model for a summary.

    ```python
    from outlast import Session, summarise

    session = Session().on_compaction(summarise("openai:gpt-5-mini", words=200))
    ```
    """

    async def summary(messages: Sequence[Message]) -> str | None:
        from pydantic_ai.direct import model_request
        from pydantic_ai.messages import ModelRequest

        from outlast.chat.model.client import resolve

        texts = "\n\n".join(f"{each.role}: {each.text}" for each in messages if each.text)
        prompt = (
            f"Summarise this conversation in at most {words} words. Keep every fact, name, number and"
            f" decision that is needed to continue it.\n\n{texts}"
        )
        answer = await model_request(resolve(model), [ModelRequest.user_text_prompt(prompt)])
        return answer.text or None

    return summary
