"""The settings of a session, as `configure_session` makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from outlast.session.block import BlockSettings, WhenChanged
from outlast.session.compaction.function import CompactionFunction, check_function
from outlast.session.tokens import TokenCounter

MAX_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Session:
    """What the model is shown of a conversation, and what it remembers.

    Each method returns a changed copy, and their order does not matter.

    ```python
    from outlast import Session, Think, summarise

    class Assistant(Think):
        def configure_session(self, session: Session) -> Session:
            return (
                session.with_context("memory", description="Facts about the user", max_tokens=2000)
                .with_cached_prompt()
                .on_compaction(summarise("anthropic:claude-haiku-4-5"))
                .compact_after(100_000)
            )
    ```
    """

    system_prompt: str | None = None  # None: the context blocks, or else `get_system_prompt()`
    max_messages: int | None = None
    max_characters: int | None = None
    blocks: tuple[BlockSettings, ...] = ()
    is_prompt_cached: bool = False
    compaction: CompactionFunction | None = None
    threshold: int | None = None  # tokens
    token_counter: TokenCounter | None = None
    compaction_error: Callable[[Exception], Any] | None = None
    search_language: str | None = None
    is_searchable: bool = False

    def with_system_prompt(self, text: str) -> Session:
        """Use this instead of `get_system_prompt()`. Context blocks follow it."""
        if not isinstance(text, str):
            raise TypeError(f"a system prompt must be a str, got {text!r}")
        return replace(self, system_prompt=text)

    def with_window(self, *, messages: int | None = None, characters: int | None = None) -> Session:
        """Show the model only the last messages: at most this many, or this many characters in total."""
        for what, limit in (("messages", messages), ("characters", characters)):
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                raise ValueError(f"{what} must be an int of at least 1, got {limit!r}")
        return replace(self, max_messages=messages, max_characters=characters)

    def with_context(
        self,
        label: str,
        *,
        description: str | None = None,
        max_tokens: int | None = None,
        provider: Any = None,
        when_changed: WhenChanged = "refresh",
    ) -> Session:
        """Add a context block to the system prompt.

        What the `provider` can do decides what the model can do with the block: see `ContextBlock`. Without a
        provider, the block is stored with the agent, and the model can write it.
        A block that changes often can be shown behind the conversation, `when_changed="remind"`, so that the
        provider's prompt cache still hits; the others appear changed at the next refresh of the prompt.
        """
        if any(block.label == label for block in self.blocks):
            raise ValueError(f"the session has two context blocks {label!r}; rename one")
        block = BlockSettings(
            label=label,
            description=description,
            max_tokens=max_tokens,
            provider=provider,
            when_changed=when_changed,
        )
        return replace(self, blocks=(*self.blocks, block))

    def with_cached_prompt(self) -> Session:
        """Store the rendered system prompt, so that it is the same after a restart."""
        return replace(self, is_prompt_cached=True)

    def with_search(self, *, language: str | None = "english") -> Session:
        """Keep a full-text index of the conversation; `language` is that of the stemmer, None: no stemming.

        An existing conversation is indexed in the background. Without an index, a search reads the messages.
        """
        if language is not None and not isinstance(language, str):
            raise TypeError(f"language must be a str or None, got {language!r}")
        return replace(self, is_searchable=True, search_language=language)

    def on_compaction(self, function: CompactionFunction) -> Session:
        """Set the function that summarises old messages: it returns a str or None, and may be async.

        It receives the messages and, if it takes a second argument, a `CompactionContext`.
        """
        return replace(self, compaction=check_function(function))

    def compact_after(self, tokens: int, *, token_counter: TokenCounter | None = None) -> Session:
        """Compact the conversation after a turn that leaves it longer than this.

        The estimate is calibrated with the usage that the model reports. A `token_counter` replaces it: a
        function of a list of messages that returns their tokens.
        """
        if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 < tokens <= MAX_TOKENS:
            raise ValueError(f"tokens must be a positive int, got {tokens!r}")
        if token_counter is not None and not callable(token_counter):
            raise TypeError(f"token_counter must be a function, got {token_counter!r}")
        return replace(self, threshold=tokens, token_counter=token_counter)

    def on_compaction_error(self, function: Callable[[Exception], Any]) -> Session:
        """Set a function that is called with the exception of a compaction that failed. May be async."""
        if not callable(function):
            raise TypeError(f"on_compaction_error must be a function, got {function!r}")
        return replace(self, compaction_error=function)

    def check(self) -> None:
        """Raise if the settings contradict each other."""
        if self.threshold is not None and self.compaction is None:
            raise ValueError(
                "compact_after() needs a function that summarises: add"
                " .on_compaction(summarise(model)) in configure_session"
            )
