"""Reduces chunks to a message: one reducer for the live stream, for replays and after a crash.

A message is the AI SDK's `UIMessage` as a plain dict; unknown fields and parts are kept. The rules follow the
AI SDK's own reader while a stream is in order. Where a provider or a replay repeats itself, they are
stricter: a tool part never returns to an earlier state (`outlast.chat.message.tool_part`), and an invalid
chunk is skipped, so that the rest of the answer is not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from outlast.chat.message import tool_part as tool_parts
from outlast.chat.message.chunk_json import METADATA_KEY
from outlast.core import json

INTERRUPTED = "The call was interrupted before a result was recorded."

_AS_THEY_ARE = frozenset({"file", "reasoning-file", "source-url", "source-document", "custom"})


class MessageBuilder:
    """Builds one assistant message from its chunks, or continues an existing one.

    ```python
    from outlast.chat.message.reducer import MessageBuilder

    builder = MessageBuilder()
    builder.apply('{"type":"start","messageId":"m1"}')
    builder.apply('{"type":"text-start","id":"s1-0"}')
    builder.apply('{"type":"text-delta","id":"s1-0","delta":"Hel"}')
    builder.append("text", "s1-0", "lo")
    assert builder.message() == {
        "id": "m1",
        "role": "assistant",
        "parts": [{"type": "text", "text": "Hello", "state": "streaming"}],
    }
    ```

    The given message is never modified. A `start` restarts the stream: everything applied so far is dropped,
    and with a message id the given parts as well, because all of them follow again. So replays always result
    in the same message.
    """

    def __init__(self, message: Mapping[str, Any] | None = None) -> None:
        self._base = dict(message) if message is not None else {}
        self._begin(self._base)

    def apply(self, chunk: Mapping[str, Any] | str) -> None:
        """Apply one chunk; skip it if it is malformed or invalid here."""
        if isinstance(chunk, str):
            try:
                chunk = json.decode(chunk)
            except ValueError:
                return
        if not isinstance(chunk, Mapping):
            return
        kind = chunk.get("type")
        if kind == "text-delta":
            self._grow(self._texts, chunk)
        elif isinstance(kind, str):
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, chunk)
            elif kind in _AS_THEY_ARE:
                self._parts.append({n: v for n, v in chunk.items() if v is not None})
            elif kind.startswith("tool-"):
                self._tool(kind, chunk)
            elif kind.startswith("data-"):
                self._data(kind, chunk)

    def append(self, kind: str, part_id: str, delta: str) -> None:
        """Apply a `text-delta` or `reasoning-delta` without decoding it."""
        growing = (self._texts if kind == "text" else self._reasonings).get(part_id)
        if growing is not None:
            growing.pieces.append(delta)

    def call(self, call_id: str) -> dict[str, Any] | None:
        """Return the current part of a call, or None."""
        place = self._calls.get(call_id)
        return None if place is None else self._with_input(self._parts[place])

    def message(self) -> dict[str, Any]:
        """Return a copy of the message so far."""
        for growing in (*self._texts.values(), *self._reasonings.values()):
            growing.settle()
        for call_id in self._inputs:
            place = self._calls[call_id]
            self._parts[place] = self._with_input(self._parts[place])
        return {**self._head, "parts": [dict(p) if isinstance(p, dict) else p for p in self._parts]}

    # --- the message -----------------------------------------------------------------------------

    def _begin(self, head: Mapping[str, Any]) -> None:
        parts = head.get("parts")
        self._head: dict[str, Any] = {"id": "", "role": "assistant", **head}
        # Parts are replaced, never modified, except texts that this builder started.
        self._parts: list[Any] = list(parts) if isinstance(parts, list) else []
        self._first = len(self._parts)
        self._texts: dict[str, _OpenText] = {}
        self._reasonings: dict[str, _OpenText] = {}
        self._inputs: dict[str, list[str]] = {}
        self._index()

    def _index(self) -> None:
        self._calls: dict[str, int] = {}
        self._datas: dict[tuple[str, str], int] = {}
        for place, part in enumerate(self._parts):
            if not isinstance(part, dict):
                continue
            kind, call_id, data_id = part.get("type"), part.get("toolCallId"), part.get("id")
            if tool_parts.tool_name(part) is not None and isinstance(call_id, str):
                self._calls[call_id] = place
                if part.get("state") == "input-streaming" and isinstance(part.get("rawInput"), str):
                    self._inputs[call_id] = [part["rawInput"]]
            elif isinstance(kind, str) and kind.startswith("data-") and isinstance(data_id, str):
                self._datas[kind, data_id] = place

    def _start(self, chunk: Mapping[str, Any]) -> None:
        message_id = chunk.get("messageId")
        if not isinstance(message_id, str):
            self._begin(self._base)
        elif message_id == self._base.get("id"):
            self._begin({**self._base, "parts": []})
        else:
            self._begin({"id": message_id})
        self._merge_metadata(chunk)

    def _merge_metadata(self, chunk: Mapping[str, Any]) -> None:
        metadata = chunk.get("messageMetadata")
        if metadata is not None:
            self._head["metadata"] = _merged(self._head.get("metadata"), metadata)

    def _start_step(self, chunk: Mapping[str, Any]) -> None:
        self._parts.append({"type": "step-start"})

    def _finish_step(self, chunk: Mapping[str, Any]) -> None:
        """Store the origin of the step's answer in the part that starts the step."""
        place = self._step_place()
        if place >= self._first and "providerMetadata" in chunk:
            self._parts[place] = dict(self._parts[place])
            tool_parts.merge_provider_metadata(self._parts[place], chunk)

    def _reset_step(self, chunk: Mapping[str, Any]) -> None:
        """Remove the parts of the current step, which is tried again."""
        del self._parts[max(self._step_place() + 1, self._first) :]
        self._texts.clear()
        self._reasonings.clear()
        self._inputs.clear()
        self._index()

    def _step_place(self) -> int:
        for place in range(len(self._parts) - 1, -1, -1):
            part = self._parts[place]
            if isinstance(part, dict) and part.get("type") == "step-start":
                return place
        return -1

    # --- text and reasoning ----------------------------------------------------------------------

    def _text_start(self, chunk: Mapping[str, Any]) -> None:
        self._open(self._texts, chunk, {"type": "text", "text": "", "state": "streaming"})

    def _reasoning_start(self, chunk: Mapping[str, Any]) -> None:
        part = {"type": "reasoning", "id": chunk.get("id"), "text": "", "state": "streaming"}
        self._open(self._reasonings, chunk, part)

    def _reasoning_delta(self, chunk: Mapping[str, Any]) -> None:
        self._grow(self._reasonings, chunk)

    def _text_end(self, chunk: Mapping[str, Any]) -> None:
        self._end(self._texts, chunk)

    def _reasoning_end(self, chunk: Mapping[str, Any]) -> None:
        self._end(self._reasonings, chunk)

    def _open(
        self, opened: dict[str, _OpenText], chunk: Mapping[str, Any], part: dict[str, Any]
    ) -> None:
        part_id = chunk.get("id")
        if not isinstance(part_id, str):
            return
        self._end(opened, {"id": part_id})
        tool_parts.merge_provider_metadata(part, chunk)
        opened[part_id] = _OpenText(part)
        self._parts.append(part)

    def _grow(self, opened: dict[str, _OpenText], chunk: Mapping[str, Any]) -> None:
        part_id, delta = chunk.get("id"), chunk.get("delta")
        growing = opened.get(part_id) if isinstance(part_id, str) else None
        if growing is None:
            return
        if isinstance(delta, str):
            growing.pieces.append(delta)
        if "providerMetadata" in chunk:
            tool_parts.merge_provider_metadata(growing.part, chunk)

    def _end(self, opened: dict[str, _OpenText], chunk: Mapping[str, Any]) -> None:
        part_id = chunk.get("id")
        growing = opened.pop(part_id, None) if isinstance(part_id, str) else None
        if growing is None:
            return
        growing.settle()
        growing.part["state"] = "done"
        if isinstance(chunk.get("citations"), list):
            growing.part["citations"] = chunk["citations"]
        tool_parts.merge_provider_metadata(growing.part, chunk)

    # --- tools and data --------------------------------------------------------------------------

    def _tool(self, kind: str, chunk: Mapping[str, Any]) -> None:
        call_id = chunk.get("toolCallId")
        if kind == "tool-approval-response":
            call_id = self._call_to_approve(chunk.get("approvalId"))
        if not isinstance(call_id, str):
            return
        place = self._calls.get(call_id)
        if place is not None:
            part = self._with_input(self._parts[place])
        elif kind in tool_parts.OPENING:
            new = tool_parts.opened(chunk)
            if new is None:
                return
            place, part = len(self._parts), new
        else:
            return
        after = tool_parts.advanced(part, chunk)
        if after is None:
            return
        if place == len(self._parts):
            self._calls[call_id] = place
            self._parts.append(after)
        else:
            self._parts[place] = after
        if after.get("state") != "input-streaming":
            self._inputs.pop(call_id, None)

    def _input_delta(self, chunk: Mapping[str, Any]) -> None:
        call_id, delta = chunk.get("toolCallId"), chunk.get("inputTextDelta")
        place = self._calls.get(call_id) if isinstance(call_id, str) else None
        if place is None or not isinstance(delta, str) or not isinstance(call_id, str):
            return
        if self._parts[place].get("state") == "input-streaming":
            self._inputs.setdefault(call_id, []).append(delta)

    def _with_input(self, part: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a call with the input received so far."""
        pieces = self._inputs.get(part["toolCallId"])
        if not pieces:
            return part
        pieces[:] = ["".join(pieces)]
        return tool_parts.with_raw_input(part, pieces[0])

    def _call_to_approve(self, approval_id: object) -> str | None:
        for call_id, place in reversed(self._calls.items()):
            approval = self._parts[place].get("approval")
            if isinstance(approval, dict) and approval.get("id") == approval_id:
                return call_id
        return None

    def _data(self, kind: str, chunk: Mapping[str, Any]) -> None:
        if chunk.get("transient") is True or "data" not in chunk:
            return
        data_id = chunk.get("id")
        if isinstance(data_id, str):
            place = self._datas.setdefault((kind, data_id), len(self._parts))
            if place < len(self._parts):
                self._parts[place] = {**self._parts[place], "data": chunk["data"]}
                return
        self._parts.append({n: v for n, v in chunk.items() if n != "transient"})


class _OpenText:
    """A part whose text is still arriving."""

    __slots__ = ("part", "pieces")

    def __init__(self, part: dict[str, Any]) -> None:
        self.part = part
        self.pieces: list[str] = []

    def settle(self) -> None:
        if self.pieces:
            self.part["text"] += "".join(self.pieces)
            self.pieces.clear()


_HANDLERS: dict[str, Callable[[MessageBuilder, Mapping[str, Any]], None]] = {
    "start": MessageBuilder._start,
    "start-step": MessageBuilder._start_step,
    "finish-step": MessageBuilder._finish_step,
    "reset-step": MessageBuilder._reset_step,
    "finish": MessageBuilder._merge_metadata,
    "message-metadata": MessageBuilder._merge_metadata,
    "text-start": MessageBuilder._text_start,
    "text-end": MessageBuilder._text_end,
    "reasoning-start": MessageBuilder._reasoning_start,
    "reasoning-delta": MessageBuilder._reasoning_delta,
    "reasoning-end": MessageBuilder._reasoning_end,
    "tool-input-delta": MessageBuilder._input_delta,
}


# --- messages as wholes --------------------------------------------------------------------------


def cleaned(
    message: Mapping[str, Any],
    *,
    error: str = INTERRUPTED,
    waiting: Collection[str] = (),
) -> dict[str, Any] | None:
    """Return the message of an interrupted attempt in a final form, or None if nothing is left.

    Texts are no longer streaming. A call with incomplete input is dropped. A call that ran, or was about to
    run, ends with this error; a call is kept if it waits for an approval, was approved but has not run, or is
    `waiting` (ids) for a client.
    """
    kept = [after for part in _parts_of(message) if (after := _presentable(part, error, waiting))]
    after = {**message, "parts": kept}
    return None if is_empty(after) else after


def _presentable(part: object, error: str, waiting: Collection[str]) -> object:
    if not isinstance(part, dict):
        return None
    name, state = tool_parts.tool_name(part), part.get("state")
    if name is None:
        if state != "streaming":
            return part
        part = {**part, "state": "done"}
        if part.get("type") == "reasoning":
            # The next request omits it: a provider accepts only reasoning that it has signed.
            note = {"providerMetadata": {METADATA_KEY: {"unfinished": True}}}
            tool_parts.merge_provider_metadata(part, note)
        return part
    if state == "input-streaming":
        return None
    is_open = state == "input-available" or part.get("preliminary") is True
    if not is_open or part.get("toolCallId") in waiting:
        return part
    chunk = {"type": "tool-output-error", "errorText": error}
    return tool_parts.advanced(part, chunk) or part


def is_empty(message: Mapping[str, Any]) -> bool:
    """Return whether a message has nothing to show or send: only markers and empty texts."""
    return not any(_says_something(part) for part in _parts_of(message))


def _says_something(part: object) -> bool:
    if not isinstance(part, dict) or part.get("type") == "step-start":
        return False
    if part.get("type") in ("text", "reasoning"):
        return bool(part.get("text")) or _is_signed(part)
    return True


def _is_signed(part: Mapping[str, Any]) -> bool:
    """Return whether an empty text carries metadata that its provider requires."""
    metadata = part.get("providerMetadata")
    if not isinstance(metadata, dict):
        return False
    ours = metadata.get(METADATA_KEY)
    if isinstance(ours, dict):
        return "signature" in ours or len(metadata) > 1
    return bool(metadata)


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, with a space where a tool call separates two texts."""
    said: list[str] = []
    is_parted = False
    for part in _parts_of(message):
        if tool_parts.tool_name(part) is not None:
            is_parted = True
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str) or not text:
            continue
        if is_parted and said and not said[-1][-1].isspace() and not text[0].isspace():
            said.append(" ")
        said.append(text)
        is_parted = False
    return "".join(said)


def _parts_of(message: Mapping[str, Any]) -> list[Any]:
    parts = message.get("parts")
    return parts if isinstance(parts, list) else []


def _merged(old: object, new: object) -> object:
    """Merge `new` into `old`, recursively."""
    if not isinstance(old, dict) or not isinstance(new, Mapping):
        return new
    return {**old, **{name: _merged(old.get(name), value) for name, value in new.items()}}
