"""Summarises the beginning of a conversation, and stores the summary as an overlay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.message.results import Message
from outlast.session.builder import MAX_TOKENS, Session
from outlast.session.compaction.function import (
    LEAST_BUDGET,
    CompactionContext,
    call_function,
)
from outlast.session.compaction.overlay import Overlay, as_message, cut
from outlast.session.compaction.overlays import Overlays
from outlast.session.providers.excerpts import cleaned
from outlast.session.providers.patience import within
from outlast.session.tokens import MessageTokens, TokenCounter

logger = logging.getLogger("outlast.session")

PATIENCE = 300.0  # seconds for one summary
SHARE = 5  # a summary may have a fifth of the tokens of what it stands for

Refresh = Callable[[Commit], Awaitable[Any]]
"""Renders the system prompt anew, and stores it in the commit of the overlay."""


class Compactor:
    """The compaction of one agent's conversation. Compactions run one at a time."""

    def __init__(
        self, parts: Parts, settings: Session, overlays: Overlays, refresh: Refresh
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._address = parts.activation.address.text
        self._overlays = overlays
        self._refresh = refresh
        self._lock = asyncio.Lock()
        self._tokens = MessageTokens()
        self._has_warned = False
        self._has_bad_counter = False

    def count(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Return the tokens of each message: the user's count, or an estimate."""
        counter = self._settings.token_counter
        if counter is not None and not self._has_bad_counter:
            try:
                return [_counted(counter, message) for message in messages]
            except Exception:
                self._has_bad_counter = True
                logger.exception(
                    "%s: token_counter failed; tokens are estimated instead", self._address
                )
        return self._tokens.of(messages)

    async def compact(self, path: Sequence[dict[str, Any]]) -> Overlay | None:
        """Replace old messages with a summary, for the model. None if that is of no use.

        The overlay and the refreshed system prompt are one commit.
        """
        async with self._lock:
            clears = self._overlays.clears
            overlay = await self._summarised(path)
            if overlay is None:
                return None
            commit = self._parts.commits.new()
            self._overlays.add(commit, overlay)
            await self._refresh(commit)
            if self._overlays.clears != clears:  # the messages were deleted meanwhile
                return None
            await commit.stored()
            self._has_warned = False
        return overlay

    async def _summarised(self, path: Sequence[dict[str, Any]]) -> Overlay | None:
        function = self._settings.compaction
        head, tail = self._overlays.over(path)
        before = [*head, *tail]
        tokens = self.count(before)
        previous = self._overlays.of(path)
        at = cut(before, tokens)
        skip = 0 if previous is None else 1  # the summary itself, which is handed over as such
        if function is None or at <= skip:
            return None
        budget = max(LEAST_BUDGET, sum(tokens[:at]) // SHARE)
        context = CompactionContext(None if previous is None else previous.summary, budget)
        old = [Message(message) for message in before[skip:at]]
        found = await within(PATIENCE, call_function(function, old, context))
        summary = cleaned(found or "")
        if not summary.strip():
            self._warn("the compaction function returned no summary")
            return None
        overlay = Overlay(
            number=self._overlays.next_number(),
            first=str(path[0].get("id")) if previous is None else previous.first,
            last=str(before[at - 1]["id"]),
            summary=summary,
            tokens=sum(tokens[:at]),
            at=self._parts.activation.clock.now(),
        )
        after = [as_message(overlay), *before[at:]]
        if sum(self.count(after)) >= sum(tokens):
            self._warn("the summary is not shorter than the messages that it stands for")
            return None
        return overlay

    def _warn(self, what: str) -> None:
        """Log why nothing became shorter, once until a compaction succeeds."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s: cannot compact the conversation: %s", self._address, what)


def _counted(counter: TokenCounter, message: dict[str, Any]) -> int:
    count = counter([Message(message)])
    if not isinstance(count, int) or not 0 <= count <= MAX_TOKENS:
        raise ValueError(f"token_counter must return an int of at least 0, got {count!r}")
    return count
