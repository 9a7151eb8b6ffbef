"""One context block of an agent in memory: its provider, called with care."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from outlast.core.hooks import call_hook
from outlast.session.block import (
    MAX_CONTENT,
    BlockSettings,
    ContextBlock,
    ContextBlockError,
    ContextBlockFull,
)
from outlast.session.blocks.render import catalogue
from outlast.session.blocks.stored import BlockRows, Stored, StoredProvider, appended
from outlast.session.providers.abilities import abilities_of, as_provider
from outlast.session.providers.excerpts import cleaned, clipped, in_one_line, reason
from outlast.session.providers.patience import within
from outlast.session.tokens import Estimate

logger = logging.getLogger("outlast.session")

Action = Literal["replace", "append"]

READ_TIMEOUT = 5.0  # seconds, for what the prompt needs
TOOL_TIMEOUT = 30.0  # seconds, for what a tool or the application asks for
MAX_HITS = 10
MAX_KEYS = 1000  # in a catalogue


class LiveBlock:
    """A context block with its provider. `lock` is held by whoever writes, until that is durable."""

    def __init__(
        self, settings: BlockSettings, rows: BlockRows, estimate: Estimate, where: str
    ) -> None:
        self.settings = settings
        self.label = settings.label
        self.lock = asyncio.Lock()
        given = StoredProvider() if settings.provider is None else settings.provider
        provider = as_provider(self.label, given)
        self.is_stored = isinstance(provider, Stored)
        self._provider = provider.bound(rows, self.label) if self.is_stored else provider
        self.abilities = abilities_of(self.label, self._provider)
        self._estimate = estimate
        self._where = where
        self._is_ready = False
        self._getting_ready = asyncio.Lock()
        self._error: str | None = None  # of the last read

    # --- reading ---------------------------------------------------------------------------------

    async def read(self) -> ContextBlock:
        """Return the block as the prompt shows it. A provider that fails leaves it empty, with an error."""
        try:
            content, keys = await within(READ_TIMEOUT, self._read())
        except Exception as error:
            self._note(error)
            return self.shown("", error=reason(error))
        self._note(None)
        return self.shown(content, keys=keys)

    async def _read(self) -> tuple[str, tuple[str, ...]]:
        if not self.abilities.can_get:
            await self._get_ready()
            return "", ()
        found = await self._call("get")
        if isinstance(found, Mapping) and self.abilities.can_load:
            entries = _entries(self.label, found)
            return clipped(catalogue(entries)), tuple(entries)
        return cleaned(clipped(self._text("get", found))), ()

    def shown(
        self, content: str, *, error: str | None = None, keys: tuple[str, ...] = ()
    ) -> ContextBlock:
        """Return the block with this content."""
        settings = self.settings
        tokens = self._estimate(content) if content else 0
        return ContextBlock(
            self.label,
            self.abilities.kind,
            content,
            settings.description,
            settings.max_tokens,
            tokens,
            error,
            keys,
        )

    def _note(self, error: Exception | None) -> None:
        """Log that the block cannot be read, or can be read again, once for each change."""
        now = None if error is None else reason(error)
        before, self._error = self._error, now
        if now is not None and now != before:
            logger.warning(
                "%s: the context block %r could not be read",
                self._where,
                self.label,
                exc_info=error,
            )
        elif now is None and before is not None:
            logger.info("%s: the context block %r can be read again", self._where, self.label)

    async def load(self, key: str) -> str | None:
        """Return the content of an entry; None if there is none with this key."""
        if not self.abilities.can_load:
            raise ContextBlockError(f"{self.label} has no entries that can be loaded")
        found = await within(TOOL_TIMEOUT, self._call("load", key))
        return None if found is None else cleaned(clipped(self._text("load", found)))

    async def search(self, query: str) -> str:
        """Return what a search finds, as text; "" if nothing."""
        if not self.abilities.can_search:
            raise ContextBlockError(f"{self.label} cannot be searched")
        found = await within(TOOL_TIMEOUT, self._call("search", query))
        text = _hits(self.label, found) if _is_many(found) else self._text("search", found)
        return cleaned(clipped(text))

    # --- writing ---------------------------------------------------------------------------------

    async def write(
        self,
        content: str,
        action: Action = "replace",
        key: str | None = None,
        description: str | None = None,
    ) -> ContextBlock:
        """Replace or append to the content, or the entry of a key. The caller holds the lock.

        Returns the block as it is now; of an entry, with the entry's content.
        """
        whole = await self.prepared(content, action, key)
        if action == "append" and self.abilities.can_append:
            await self._bounded("append", cleaned(content))
        else:
            await self.put(whole, key, description)
        return self.shown(whole)

    async def prepared(self, content: str, action: Action, key: str | None = None) -> str:
        """Return the content as a write would leave it, or raise an error if it must not be written."""
        self._check_writable(key)
        content = self._checked_text(content)
        if action == "append":
            content = appended(await self.current(key), content)
        self._check_size(content, self.label if key is None else f"{key} of {self.label}")
        return content

    async def current(self, key: str | None = None) -> str:
        """Return the whole content of the block, or of an entry; "" if there is none."""
        if key is None:
            return self._text("get", await self._bounded("get"))
        if not self.abilities.can_load:
            raise ContextBlockError(f"{self.label} cannot append; replace the whole entry")
        return self._text("load", await self._bounded("load", key))

    async def put(
        self, whole: str, key: str | None = None, description: str | None = None
    ) -> ContextBlock:
        """Write what `prepared` has returned."""
        if key is None:
            await self._bounded("set", whole)
        elif self.abilities.kind == "loadable":
            await self._bounded("set", key, whole, description)
        else:
            await self._bounded("set", key, whole)
        return self.shown(whole)

    def _check_writable(self, key: str | None) -> None:
        if not self.abilities.can_set:
            raise ContextBlockError(f"{self.label} is read-only")
        if self.abilities.is_keyed and key is None:
            raise ContextBlockError(f"{self.label} has entries; write one of them by its key")
        if key is not None and not self.abilities.is_keyed:
            raise ContextBlockError(f"{self.label} has no entries; write it as a whole")

    def _checked_text(self, content: object) -> str:
        if not isinstance(content, str):
            raise TypeError(f"content of {self.label!r} must be a str, got {content!r}")
        self._check_length(content, self.label)
        return cleaned(content)

    def _check_length(self, content: str, what: str) -> None:
        if len(content) > MAX_CONTENT:
            raise ContextBlockFull(
                f"{what} would have {len(content):,} characters, but at most {MAX_CONTENT:,} can be"
                " written"
            )

    def _check_size(self, content: str, what: str) -> None:
        self._check_length(content, what)
        most = self.settings.max_tokens
        if most is not None and (tokens := self._estimate(content)) > most:
            raise ContextBlockFull(f"{what} would use {tokens:,} of {most:,} tokens; shorten it")

    # --- the provider ----------------------------------------------------------------------------

    async def _bounded(self, method: str, *arguments: Any) -> Any:
        """Call a method of the provider. What the store does is awaited for as long as it takes."""
        work = self._call(method, *arguments)
        return await (work if self.is_stored else within(TOOL_TIMEOUT, work))

    async def _call(self, method: str, *arguments: Any) -> Any:
        await self._get_ready()
        return await call_hook(getattr(self._provider, method), *arguments)

    async def _get_ready(self) -> None:
        if self._is_ready:
            return
        async with self._getting_ready:
            init = getattr(self._provider, "init", None)
            if not self._is_ready and callable(init):
                await call_hook(init, self.label)
            self._is_ready = True

    def _text(self, method: str, found: object) -> str:
        if found is None:
            return ""
        if not isinstance(found, str):
            raise TypeError(
                f"{method}() of the provider of {self.label!r} must return a str, got {_kind(found)}"
            )
        return found


def _kind(found: object) -> str:
    return type(found).__name__


def _is_many(found: object) -> bool:
    return isinstance(found, Iterable) and not isinstance(found, str | bytes | Mapping)


def _entries(label: str, found: Mapping[Any, Any]) -> dict[str, str | None]:
    """Return a catalogue as it can be shown, or raise an error if it is none."""
    entries: dict[str, str | None] = {}
    for key, description in list(found.items())[:MAX_KEYS]:
        if not isinstance(key, str) or not isinstance(description, str | None):
            raise TypeError(
                f"get() of the provider of {label!r} must return keys with descriptions, got"
                f" {_kind(key)} with {_kind(description)}"
            )
        entries[cleaned(in_one_line(key[:1000]))] = (
            cleaned(description[:1000]) if description else None
        )
    return entries


def _hits(label: str, found: Iterable[Any]) -> str:
    texts = []
    for each, _ in zip(found, range(MAX_HITS), strict=False):
        if isinstance(each, str):
            texts.append(each)
            continue
        match each:
            case (str(key), str(content)):
                texts.append(f"[{key}]\n{content}")
            case _:
                raise TypeError(
                    f"search() of the provider of {label!r} must return (key, content) pairs, got"
                    f" {_kind(each)}"
                )
    return "\n\n".join(texts)
