"""`self.session`: what code does with the session of its agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlast.chat.message.results import Message
from outlast.session.block import ContextBlock, UnknownContextBlock, WhenChanged
from outlast.session.search.search import SearchHit

if TYPE_CHECKING:
    from outlast.session.part import SessionPart


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """How long the conversation is, as the model sees it."""

    estimate: int  # tokens of the system prompt and the messages
    threshold: int | None  # of `compact_after`
    window: int | None  # of `context_overflow.proactive`


@dataclass(frozen=True, slots=True)
class RecentHistory:
    """The end of a conversation, as much as fits."""

    messages: list[Message]
    is_truncated: bool
    total_bytes: int  # of the whole conversation in memory


class LiveSession:
    """The session of one agent: its context blocks, its prompt, its history.

    ```python
    from outlast import Host, Session, Think

    class Assistant(Think):
        def configure_session(self, session: Session) -> Session:
            return session.with_context("memory", description="Facts about the user", max_tokens=500)

        async def learn(self, fact: str) -> None:
            await self.session.append_context_block("memory", fact)
            await self.session.refresh_system_prompt()

        async def knows(self) -> str:
            block = await self.session.get_context_block("memory")
            return block.content

    async with Host(agents=[Assistant], store="sqlite:///memory.db") as host:
        await host.get(Assistant, "alice").learn("Alice likes owls.")

    async with Host(agents=[Assistant], store="sqlite:///memory.db") as host:
        assert await host.get(Assistant, "alice").knows() == "Alice likes owls."
    ```
    """

    __slots__ = ("_part",)

    def __init__(self, part: SessionPart) -> None:
        self._part = part

    # --- context blocks --------------------------------------------------------------------------

    async def get_context_block(self, label: str) -> ContextBlock | None:
        """Return a block with its present content; None if there is no such block."""
        try:
            return await self._part.blocks.get(label)
        except UnknownContextBlock:
            return None

    async def get_context_blocks(self) -> list[ContextBlock]:
        """Return all blocks with their present contents."""
        return await self._part.blocks.read_all()

    async def replace_context_block(self, label: str, content: str) -> ContextBlock:
        """Write a block. The model sees it in its prompt after the next refresh."""
        return await self._part.blocks.replace(label, content)

    async def append_context_block(self, label: str, content: str) -> ContextBlock:
        """Append to a block, on a line of its own."""
        return await self._part.blocks.append(label, content)

    async def add_context(
        self,
        label: str,
        *,
        description: str | None = None,
        max_tokens: int | None = None,
        provider: Any = None,
        when_changed: WhenChanged = "refresh",
    ) -> ContextBlock:
        """Add a block while the agent runs; the prompt shows it after the next refresh.

        A block without a provider is stored with the agent. One with a provider must be added again after a
        restart, for example in `on_start`.
        """
        return await self._part.add_context(
            label,
            description=description,
            max_tokens=max_tokens,
            provider=provider,
            when_changed=when_changed,
        )

    async def remove_context(self, label: str) -> bool:
        """Remove a block until the next start; for good if `add_context` added it. False if there is none.

        Its content stays with its provider.
        """
        return await self._part.remove_context(label)

    # --- the prompt ------------------------------------------------------------------------------

    async def system_prompt(self) -> str:
        """Return the system prompt, as it is frozen."""
        return await self._part.prompt.text()

    async def refresh_system_prompt(self) -> str:
        """Render the system prompt anew, with the present contents of the blocks."""
        return await self._part.prompt.refresh()

    # --- the conversation ------------------------------------------------------------------------

    def get_history(self) -> list[Message]:
        """Return the conversation as the model sees it: with a summary in place of what it covers."""
        return [Message(message) for message in self._part.history()]

    def get_recent_history(self, max_bytes: int, min_recent: int = 4) -> RecentHistory:
        """Return the newest messages of `get_history()` that fit, and at least `min_recent`."""
        return self._part.recent(max_bytes, min_recent)

    async def search(self, query: str, limit: int = 20) -> list[SearchHit]:
        """Return the messages that match, on all branches, best first; summarised ones, too.

        All words must occur; `"quoted words"` one behind the other, `pre*` as a prefix, `-word` not at all.
        """
        return await self._part.search(query, limit)

    async def compact(self) -> bool:
        """Summarise old messages now. False if there is nothing to gain, or if it fails."""
        return await self._part.compact_now("manual")

    @property
    def tokens(self) -> TokenUsage:
        """An estimate of what the next request will have at least."""
        return self._part.token_usage()
