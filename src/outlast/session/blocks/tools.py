"""The model's tools for context blocks. Each is offered only if a block supports it.

Results are texts, errors too: `Error: …`. A write has a receipt in its commit, so a call that is made again
after a crash finds what came of the first one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, cast

from outlast.agent.receipts import Receipts
from outlast.chat.tools.declare import ToolCall, current_call, tool
from outlast.core.errors import OutlastError
from outlast.session.block import ContextBlock, ContextBlockError, quoted, usage
from outlast.session.blocks.blocks import Blocks
from outlast.session.blocks.keys import entry_key, key_problem
from outlast.session.blocks.live import Action, LiveBlock
from outlast.session.blocks.loaded import ERROR, LOAD, UNLOAD, as_result
from outlast.session.providers.abilities import Abilities
from outlast.session.providers.excerpts import cleaned, in_one_line, reason

if TYPE_CHECKING:
    from pydantic_ai import Tool

SET, SEARCH = "set_context", "search_context"
SCOPE = "session:context"  # of the receipts
PLANS = "session:context planned"
LISTED = 20  # keys that an error names

# Removes the content of an entry from the conversation, in the open commit. False: it was not loaded.
OnUnload = Callable[[str, str], Awaitable[bool | None]]
Input = Mapping[str, Any]


class _Refused(Exception):
    """The text that the model gets; what the commit contained is rolled back."""


class ContextTools:
    """The tools of one agent's blocks."""

    def __init__(
        self, blocks: Blocks, receipts: Receipts, on_unload: OnUnload | None = None
    ) -> None:
        self._blocks = blocks
        self._receipts = receipts
        self._on_unload = on_unload

    def offered(self) -> list[Tool[Any]]:
        """Return the tools that the blocks support, for the contribution to a turn."""
        offers = [self._offer_set(), self._offer_load(), self._offer_unload(), self._offer_search()]
        return [each for each in offers if each is not None]

    # --- what the model sees ---------------------------------------------------------------------

    def _offer_set(self) -> Tool[Any] | None:
        fields: dict[str, Any] = {
            "content": {"type": "string"},
            "action": {"type": "string", "enum": ["replace", "append"], "default": "replace"},
        }
        if self._blocks.labels(lambda can: can.can_set and can.is_keyed):
            fields["title"] = _text("Names an entry. The same title replaces the same entry.")
            fields["description"] = _text("Says in the catalogue what the entry is about.")
        return self._tool(
            self._set_context,
            SET,
            "Write to a context block. It is kept across conversations; the system prompt shows the change"
            " when it is next refreshed.",
            lambda can: can.can_set,
            fields,
            required=["content"],
        )

    def _offer_load(self) -> Tool[Any] | None:
        about = "Load the content of one entry of a context block, by its key in the catalogue."
        return self._tool(self._load_context, LOAD, about, _can_load, {"key": _text()})

    def _offer_unload(self) -> Tool[Any] | None:
        about = "Remove a loaded entry from the conversation, to make room. It can be loaded again."
        return self._tool(self._unload_context, UNLOAD, about, _can_load, {"key": _text()})

    def _offer_search(self) -> Tool[Any] | None:
        about = "Search a context block for words, and return the best passages."
        return self._tool(
            self._search_context, SEARCH, about, lambda can: can.can_search, {"query": _text()}
        )

    def _tool(
        self,
        function: Callable[..., Awaitable[str]],
        name: str,
        description: str,
        which: Callable[[Abilities], bool],
        fields: dict[str, Any],
        required: list[str] | None = None,
    ) -> Tool[Any] | None:
        """Return a tool for the blocks that support it; None if there are none."""
        from pydantic_ai import Tool

        labels = self._blocks.labels(which)
        if not labels:
            return None
        schema = {
            "type": "object",
            "properties": {"label": {"type": "string", "enum": list(labels)}, **fields},
            "required": ["label", *(list(fields) if required is None else required)],
            "additionalProperties": False,
        }
        return Tool.from_schema(function, name, description, schema)

    # --- what they do ----------------------------------------------------------------------------

    @tool(effect="idempotent")
    async def _set_context(self, **input: Any) -> str:
        return await _answered(self._write(input, _call()))

    @tool(effect="read")
    async def _load_context(self, **input: Any) -> str:
        return await _answered(self._load(input))

    @tool(effect="idempotent")
    async def _unload_context(self, **input: Any) -> str:
        return await _answered(self._unload(input, _call()))

    @tool(effect="read")
    async def _search_context(self, **input: Any) -> str:
        return await _answered(self._search(input))

    async def _write(self, input: Input, call: ToolCall) -> str:
        block = self._block(input, lambda can: can.can_set)
        write = _Write.of(block, input)
        async with block.lock:  # until the write is durable, so that no append misses another
            planned = await self._planned(block, write, call)
            async with self._receipts.once(SCOPE, call.idempotency_key) as receipt:
                if not receipt.found:
                    receipt.value = await _told(_written(block, write, planned))
                return str(receipt.value)

    async def _planned(self, block: LiveBlock, write: _Write, call: ToolCall) -> str | None:
        """Commit what an append outside the store is going to leave there, before it is done.

        The commit of its receipt cannot contain it. A call that is made again recognises what it did before.
        """
        if block.is_stored or write.action == "replace":
            return None
        async with self._receipts.once(PLANS, call.idempotency_key) as plan:
            if not plan.found:
                plan.value = _digest(
                    await _told(block.prepared(write.content, "append", write.key))
                )
            return str(plan.value)

    async def _load(self, input: Input) -> str:
        block, key = self._block(input, _can_load), _key(input)
        content = await block.load(key)
        if content is None:
            keys = (await block.read()).keys
            raise _Refused(f'{block.label} has no entry "{_short(key)}"{_having(keys)}')
        return as_result(content)

    async def _unload(self, input: Input, call: ToolCall) -> str:
        block, key = self._block(input, _can_load), _key(input)
        async with self._receipts.once(SCOPE, call.idempotency_key) as receipt:
            if not receipt.found:
                receipt.value = await _told(self._unloaded(block.label, key))
            return str(receipt.value)

    async def _unloaded(self, label: str, key: str) -> str:
        if self._on_unload is not None and await self._on_unload(label, key) is False:
            raise _Refused(f'"{_short(key)}" of {label} is not loaded')
        return f'Unloaded "{_short(key)}" of {label}.'

    async def _search(self, input: Input) -> str:
        block = self._block(input, lambda can: can.can_search)
        query = _str(input, "query")
        if not query.strip():
            raise _Refused("query must not be blank")
        return await block.search(query) or f"Nothing in {block.label} matches."

    def _block(self, input: Input, which: Callable[[Abilities], bool]) -> LiveBlock:
        label, labels = input.get("label"), self._blocks.labels(which)
        if label not in labels:
            raise _Refused(f"label must be one of {quoted(labels)}, got {_repr(label)}")
        return self._blocks[cast(str, label)]


@dataclass(frozen=True, slots=True)
class _Write:
    """The checked arguments of `set_context`."""

    content: str
    action: Action
    key: str | None = None  # of an entry
    description: str | None = None

    @classmethod
    def of(cls, block: LiveBlock, input: Input) -> _Write:
        content, action = _str(input, "content"), _action(input)
        if not block.abilities.is_keyed:
            return cls(content, action)
        title, description = _optional(input, "title"), _optional(input, "description")
        return cls(content, action, entry_key(content, title), description)


async def _written(block: LiveBlock, write: _Write, planned: str | None) -> str:
    """Write, unless that was done before a crash, and return the result for the model."""
    if planned is not None and _digest(now := await block.current(write.key)) == planned:
        after = block.shown(now)
    else:
        after = await block.write(write.content, write.action, write.key, write.description)
    return _usage(after) if write.key is None else f'Indexed "{write.key}" in {block.label}.'


def _digest(content: str) -> str:
    return sha256(content.encode("utf-8", "replace")).hexdigest()


def _can_load(can: Abilities) -> bool:
    return can.can_load


def _call() -> ToolCall:
    call = current_call.get()
    assert call is not None
    return call


async def _answered(work: Awaitable[str]) -> str:
    """Return the result of a tool, or its error as text."""
    try:
        return await _told(work)
    except _Refused as refused:
        return f"{ERROR}{refused}"


async def _told(work: Awaitable[str]) -> str:
    """Return the result of some work. A failure of the block or its provider becomes `_Refused`.

    Other errors of outlast stay as they are: the store failed, or the agent is no longer this one.
    """
    try:
        return await work
    except ContextBlockError as error:
        raise _Refused(str(error)) from error
    except (_Refused, OutlastError):
        raise
    except Exception as error:
        raise _Refused(reason(error)) from error


# --- arguments, as models write them -------------------------------------------------------------


def _text(description: str | None = None) -> dict[str, str]:
    return {"type": "string"} | ({} if description is None else {"description": description})


def _str(input: Input, name: str) -> str:
    value = input.get(name)
    if not isinstance(value, str):
        raise _Refused(f"{name} must be a string, got {_repr(value)}")
    return value


def _optional(input: Input, name: str) -> str | None:
    if input.get(name) is None:
        return None
    return cleaned(in_one_line(_str(input, name)[:1000])) or None


def _key(input: Input) -> str:
    problem = key_problem(input.get("key"))
    if problem is not None:
        raise _Refused(_short(f"key {problem}"))
    return cast(str, input["key"])


def _action(input: Input) -> Action:
    action = input.get("action") or "replace"
    if action not in ("replace", "append"):
        raise _Refused(f"action must be replace or append, got {_repr(action)}")
    return cast(Literal["replace", "append"], action)


def _short(text: str) -> str:
    return in_one_line(text[:200])


def _repr(value: object) -> str:
    return _short(repr(value))


def _having(keys: tuple[str, ...]) -> str:
    if not keys:
        return "."
    more = f" and {len(keys) - LISTED:,} more" if len(keys) > LISTED else ""
    return f". It has: {', '.join(keys[:LISTED])}{more}."


def _usage(block: ContextBlock) -> str:
    if block.max_tokens is None:
        return f"Written to {block.label} ({block.tokens:,} tokens)."
    return f"Written to {block.label}. Usage: {usage(block.tokens, block.max_tokens)}."
