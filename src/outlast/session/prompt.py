"""The system prompt of a session: rendered once, and the same to the byte until it is refreshed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.agent.state.facts import Facts
from outlast.core import json
from outlast.session.block import ContextBlock
from outlast.session.blocks.blocks import Blocks
from outlast.session.blocks.render import rendered
from outlast.session.builder import Session
from outlast.session.events import PromptRefreshed

PROMPT = "session:prompt"  # the fact that holds it
RETRY_AFTER = 60_000  # milliseconds, until a block that could not be read is read again
REMINDER = "has changed since the beginning of this conversation. It is now:"


class FrozenPrompt:
    """The prompt of one agent. With `with_cached_prompt()` it is stored, and outlasts the process."""

    def __init__(self, parts: Parts, settings: Session, blocks: Blocks) -> None:
        self._activation = parts.activation
        self._address = parts.activation.address.text
        self._commits = parts.commits
        self._facts = parts[Facts]
        self._text: str | None = None
        self._contents: Mapping[str, str] = {}  # digests of the blocks in it, by label
        self._unread: Sequence[str] = ()  # the blocks that could not be read
        self._retry_at = 0
        self._settings = settings
        self._blocks = blocks

    @property
    def current(self) -> str:
        """The prompt, if it was rendered already."""
        return self._text or self._settings.system_prompt or ""

    async def text(self) -> str:
        """Return the prompt; empty if the session has neither blocks nor a prompt of its own."""
        if not self._blocks.settings:
            return self._settings.system_prompt or ""
        is_frozen = self._text is not None or self._restore()
        if not is_frozen or await self._can_be_mended():
            return await self.refresh()
        return self.current

    async def _can_be_mended(self) -> bool:
        """Return whether a block can be read now that could not be when the prompt was rendered."""
        now = self._activation.clock.now()
        if not self._unread or now < self._retry_at:
            return False
        self._retry_at = now + RETRY_AFTER
        labels = {each.label for each in self._blocks.settings}
        found = await asyncio.gather(
            *(self._blocks.get(label) for label in self._unread if label in labels)
        )
        return any(block.error is None for block in found)

    def _restore(self) -> bool:
        """Take over the stored prompt, unless it was made by other settings."""
        stored = self._facts.get(PROMPT, None, None) if self._settings.is_prompt_cached else None
        if not isinstance(stored, Mapping) or stored.get("settings") != self._fingerprint():
            return False
        text, contents = stored.get("text"), stored.get("contents")
        if not isinstance(text, str) or not isinstance(contents, Mapping):
            return False
        self._text, self._contents = text, contents
        self._unread, self._retry_at = stored.get("unread") or (), 0
        return True

    async def refresh(self) -> str:
        """Render the prompt anew. It applies at once, and is durable when this returns if it is cached."""
        rendering = await self._rendered()
        self._freeze(rendering)
        if self._settings.is_prompt_cached:
            commit = self._commits.current_or_new()
            self._put(commit, rendering)
            commit.undo(self._drop)
            await commit.stored()
        return rendering.text

    async def refresh_with(self, commit: Commit) -> None:
        """Render the prompt anew, for the caller's commit. It applies once that is durable."""
        rendering = await self._rendered()
        if self._settings.is_prompt_cached:
            self._put(commit, rendering)
        commit.then(lambda: self._freeze(rendering))

    async def _rendered(self) -> _Rendering:
        blocks = await self._blocks.read_all()
        parts = (self._settings.system_prompt or "", rendered(blocks))
        return _Rendering(
            text="\n\n".join(filter(None, parts)),
            contents={block.label: _digest(block) for block in blocks},
            unread=[block.label for block in blocks if block.error is not None],
        )

    def _put(self, commit: Commit, rendering: _Rendering) -> None:
        record = {**asdict(rendering), "settings": self._fingerprint()}
        self._facts.put(commit, PROMPT, json.encode(record))

    def _freeze(self, rendering: _Rendering) -> None:
        self._text, self._contents = rendering.text, rendering.contents
        self._unread = rendering.unread
        self._retry_at = self._activation.clock.now() + RETRY_AFTER
        self._activation.events.emit(PromptRefreshed, self._address, characters=len(rendering.text))

    def forget(self, commit: Commit) -> None:
        """Render the prompt anew before the next turn."""
        if self._facts.text(PROMPT) not in (None, "null"):
            self._facts.put(commit, PROMPT, "null")
        commit.then(self._drop)

    def _drop(self) -> None:
        self._text = None

    async def reminders(self) -> list[str]:
        """Return the contents of the volatile blocks that have changed since the prompt was rendered."""
        volatile = [each.label for each in self._blocks.settings if each.when_changed == "remind"]
        blocks = await asyncio.gather(*map(self._blocks.get, volatile))
        return [
            f"[{block.label} {REMINDER}]\n{block.content}"
            for block in blocks
            if block.error is None and self._contents.get(block.label) != _digest(block)
        ]

    def _fingerprint(self) -> str:
        """Return what changes when the code has other blocks or another prompt."""
        blocks = self._blocks.settings
        labels = [
            [each.label, each.description, each.max_tokens, self._blocks[each.label].abilities.kind]
            for each in blocks
        ]
        settings = [self._settings.system_prompt, labels]
        return hashlib.sha256(json.encode(settings).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Rendering:
    """A prompt, with the digests of its blocks and the labels of those that could not be read."""

    text: str
    contents: Mapping[str, str]
    unread: Sequence[str]


def _digest(block: ContextBlock) -> str:
    return hashlib.sha256((block.content or "").encode("utf-8", "replace")).hexdigest()[:16]
