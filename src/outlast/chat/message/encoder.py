"""Encodes a model's stream as chunks of the AI SDK's UI message stream.

A chunk is JSON and is encoded once: the same text goes to the store and to every browser. Ids consist of the
step's number and the part's place in it, so a replay after a crash uses the same ids. Details that the next
request needs but browsers do not (signatures, provider ids) travel in `providerMetadata` under the key
`outlast`; `outlast.chat.context.history` reads them back.

Events are distinguished by their kind fields, not by their classes: this module does not import Pydantic AI,
and skips unknown parts and events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from outlast.chat.message.chunk_json import FOR_CLIENT, encoded, metadata_of, present_attributes
from outlast.chat.message.open_parts import (
    MoreText,
    OpenCall,
    OpenFile,
    OpenPart,
    OpenText,
)
from outlast.core import json

_FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content-filter",
    "tool_call": "tool-calls",
    "error": "error",
}
_USAGE = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "totalTokens": "total_tokens",
    "cachedInputTokens": "cache_read_tokens",
    "cacheWriteTokens": "cache_write_tokens",
}
_RESPONSE_FIELDS = (
    "model_name",
    "provider_name",
    "provider_url",
    "canonical_system",
    "provider_response_id",
    "provider_details",
    "finish_reason",
)


class Encoder:
    """Turns one message's stream into chunks, step by step.

    ```python
    from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

    from outlast.chat.message.encoder import Encoder

    encoder = Encoder()
    chunks = [encoder.start("message_1"), encoder.start_step(1)]
    chunks += encoder.event(PartStartEvent(index=0, part=TextPart("Hel")))
    chunks += encoder.event(PartDeltaEvent(index=0, delta=TextPartDelta("lo")))
    chunks += encoder.finish_step()
    assert chunks[3:] == [
        '{"type":"text-delta","id":"s1-0","delta":"Hel"}',
        '{"type":"text-delta","id":"s1-0","delta":"lo"}',
        '{"type":"text-end","id":"s1-0"}',
        '{"type":"finish-step"}',
    ]
    ```
    """

    def __init__(self, *, send_reasoning: bool = True) -> None:
        self._send_reasoning = send_reasoning
        self._step = "0"
        self._left: str | None = None  # the id of a text that an earlier attempt left open
        self._open: dict[int, OpenPart] = {}
        self._ended: dict[int, OpenPart] = {}
        self._slots = 0  # model parts of this step shown so far
        self._call_slots: dict[str, int] = {}

    # --- the message and its steps ---------------------------------------------------------------

    def start(self, message_id: str | None = None, metadata: object = None) -> str:
        """Return the first chunk. Without a `message_id`, it continues the last message."""
        chunk: dict[str, object] = {"type": "start"}
        if message_id is not None:
            chunk["messageId"] = message_id
        if metadata is not None:
            chunk["messageMetadata"] = metadata
        return encoded(chunk)

    def start_step(self, step: int) -> str:
        """Begin a request to the model; `step` is part of the ids of its parts, and must be unique."""
        self._step = str(step)
        self._forget()
        return '{"type":"start-step"}'

    def resume_step(self, label: str, open_text: str | None, slots: int) -> None:
        """Continue a step of an earlier attempt, and the text that it left open, if any.

        The label is part of the ids of new parts; `slots` model parts were shown already.
        """
        self._forget()
        self._step, self._left, self._slots = label, open_text, slots

    def resume_parts(self, label: str, shown: Sequence[tuple[str, str, bool]]) -> None:
        """Continue an answer with these parts, by place: kind, id, and whether it is open."""
        self._forget()
        self._step, self._slots = label, len(shown)
        for index, (kind, part_id, is_open) in enumerate(shown):
            part = OpenText(kind, part_id, index)
            (self._open if is_open else self._ended)[index] = part

    def end_response(self) -> list[str]:
        """End the open parts of a complete model stream. Call this before any tool runs."""
        chunks = self._end_left()
        chunks += [chunk for part in self._open.values() for chunk in part.end(None)]
        self._ended.update(self._open)
        self._open.clear()
        return chunks

    def finish_step(
        self, response: object = None, usage: Mapping[str, Any] | None = None
    ) -> list[str]:
        """End the step, after its tools; the metadata records the origin of `response`."""
        chunks = self.end_response()
        origin = present_attributes(response, _RESPONSE_FIELDS)
        if usage:
            origin["usage"] = dict(usage)
        chunks.append(encoded({"type": "finish-step", **metadata_of(origin)}))
        self._forget()
        return chunks

    def finish(
        self, finish_reason: str | None = None, usage: object = None, metadata: object = None
    ) -> str:
        """End the message. `usage` is Pydantic AI's, or a dict to show as it is."""
        chunk: dict[str, object] = {"type": "finish"}
        if finish_reason is not None:
            chunk["finishReason"] = _FINISH_REASONS.get(finish_reason, "other")
        shown = dict(metadata) if isinstance(metadata, Mapping) else {}
        if usage is not None:
            shown["usage"] = usage if isinstance(usage, Mapping) else _usage(usage)
        if shown:
            chunk["messageMetadata"] = shown
        return encoded(chunk)

    def metadata(self, metadata: object) -> str:
        """Merge into the message's metadata."""
        return encoded({"type": "message-metadata", "messageMetadata": metadata})

    def data(
        self, name: str, data: object, *, data_id: str | None = None, transient: bool = False
    ) -> str:
        """Return a data part of the application; a transient one is shown but not stored."""
        chunk: dict[str, object] = {"type": f"data-{name}"}
        if data_id is not None:
            chunk["id"] = data_id
        chunk["data"] = data
        if transient:
            chunk["transient"] = True
        return encoded(chunk)

    def error(self, text: str) -> str:
        return encoded({"type": "error", "errorText": text})

    def abort(self, reason: str | None = None) -> str:
        return encoded({"type": "abort"} if reason is None else {"type": "abort", "reason": reason})

    def close(self) -> list[str]:
        """End the open parts of an interrupted stream: an incomplete call becomes a failed one."""
        chunks = self._end_left()
        chunks += [chunk for part in self._open.values() for chunk in part.broken()]
        self._forget()
        return chunks

    # --- tools -----------------------------------------------------------------------------------

    def tool_output(self, call_id: str, output: object, *, preliminary: bool = False) -> str:
        """Return the output of a tool. Raises `TypeError` if it cannot be encoded as JSON."""
        chunk = {"type": "tool-output-available", "toolCallId": call_id, "output": output}
        return encoded({**chunk, "preliminary": True} if preliminary else chunk)

    def tool_output_text(self, call_id: str, output: str) -> str:
        """Return the output of a tool, given as JSON."""
        return f'{{"type":"tool-output-available","toolCallId":{json.encode(call_id)},"output":{output}}}'

    def tool_error(
        self,
        call_id: str,
        text: str,
        *,
        outcome: Literal["failed", "retried", "unknown"] = "failed",
        detail: str | None = None,
        for_model: bool = False,
        mark: str | None = None,
    ) -> str:
        """Return the error of a call: it failed, the model was asked to retry, or its outcome is unknown.

        Clients are not shown `detail`; the model is, with `for_model`. `mark` says whether
        `repair_interrupted_tool_part` was called.
        """
        chunk = {"type": "tool-output-error", "toolCallId": call_id, "errorText": text}
        ours: dict[str, Any] = {} if outcome == "failed" else {"outcome": outcome}
        if detail is not None:
            ours |= {"detail": detail, **({"for_model": True} if for_model else {})}
        if mark is not None:
            ours["repair"] = mark
        return encoded({**chunk, **metadata_of(ours)})

    def tool_denied(self, call_id: str) -> str:
        return encoded({"type": "tool-output-denied", "toolCallId": call_id})

    def tool_approval_request(
        self,
        call_id: str,
        approval_id: str,
        *,
        reason: str | None = None,
        for_client: bool = False,
    ) -> str:
        """Request an approval; with `for_client`, the client runs the call once it is approved."""
        chunk = {"type": "tool-approval-request", "approvalId": approval_id, "toolCallId": call_id}
        more = {} if reason is None else {"reason": reason}
        return encoded({**chunk, **more, **metadata_of({FOR_CLIENT: True} if for_client else {})})

    def tool_approval_response(
        self, approval_id: str, approved: bool, *, reason: str | None = None
    ) -> str:
        chunk = {
            "type": "tool-approval-response",
            "approvalId": approval_id,
            "approved": approved,
        }
        return encoded({**chunk, "reason": reason} if reason is not None else chunk)

    # --- the model's stream ----------------------------------------------------------------------

    def more_text(self, event: Any) -> MoreText | None:
        """Return the text and the chunk of the most common event, more text; None for other events.

        The reducer can append the text without decoding the chunk.
        """
        if getattr(event, "event_kind", None) != "part_delta":
            return None
        part = self._open.get(event.index)
        return part.more(event.delta) if isinstance(part, OpenText) else None

    def event(self, event: Any) -> list[str]:
        """Return the chunks of one event of a model's stream; empty if it is not shown."""
        kind = getattr(event, "event_kind", None)
        if kind == "part_delta":
            part = self._open.get(event.index) or self._reopened(event.index)
            return part.delta(event.delta) if part is not None else []
        if kind == "part_start":
            return self._started(event.index, event.part)
        if kind == "part_end":
            part = self._open.get(event.index)
            # Interleaved calls: one whose arguments continue after its "end" stays open.
            if part is None or not part.may_end(event.part):
                return []
            self._ended[event.index] = self._open.pop(event.index)
            return part.end(event.part)
        return []

    def _started(self, index: int, part: Any) -> list[str]:
        chunks: list[str] = []
        for other in [i for i, held in self._open.items() if held.is_whole and i != index]:
            self._ended[other] = self._open.pop(other)
            chunks += self._ended[other].end(None)
        again = self._open.get(index)
        if again is not None and again.replaced_by(part):
            return chunks
        if again is not None:
            chunks += again.end(None)
        elif index in self._ended:
            return chunks  # it was already shown as complete
        kind = getattr(part, "part_kind", None)
        begun: OpenPart
        if kind == "text" and self._left is not None:
            resumed = OpenText("text", self._left, self._slots - 1)
            self._left, self._open[index] = None, resumed
            return chunks + resumed.begin(part)[1:]  # without the start chunk
        chunks += self._end_left()
        if kind == "text" or (kind == "thinking" and self._send_reasoning):
            name = f"s{self._step}-{index}" + ("" if again is None else "-again")
            begun = OpenText("text" if kind == "text" else "reasoning", name, self._slots)
        elif kind in ("tool-call", "builtin-tool-call"):
            begun = OpenCall(part)
            self._call_slots[part.tool_call_id] = self._slots
        elif kind == "file":
            begun = OpenFile(part)
        elif kind == "builtin-tool-return":
            chunks.append(self._returned(part))
            self._slots += 1
            return chunks
        else:
            self._open.pop(index, None)
            return chunks
        self._open[index] = begun
        self._slots += 1
        return chunks + begun.begin(part)

    def _end_left(self) -> list[str]:
        """End the text that an earlier attempt left open, if nothing continued it."""
        left, self._left = self._left, None
        return [] if left is None else [encoded({"type": "text-end", "id": left})]

    def _reopened(self, index: int) -> OpenPart | None:
        """Reopen an ended text as a new part that refers to it."""
        ended = self._ended.get(index)
        if not isinstance(ended, OpenText):
            return None
        self._open[index] = ended.continued()
        return self._open[index]

    def _returned(self, part: Any) -> str:
        details = present_attributes(part, ("provider_name", "provider_details", "tool_kind"))
        if part.outcome != "success":
            details["outcome"] = part.outcome
        if self._call_slots.get(part.tool_call_id) != self._slots - 1:
            details["slot"] = self._slots  # it does not follow its call directly
        return encoded(
            {
                "type": "tool-output-available",
                "toolCallId": part.tool_call_id,
                "output": part.content,
                "providerExecuted": True,
                **metadata_of(details),
            }
        )

    def _forget(self) -> None:
        self._open.clear()
        self._ended.clear()
        self._call_slots.clear()
        self._slots = 0
        self._left = None


def _usage(usage: object) -> dict[str, int]:
    counted = {}
    for name, source in _USAGE.items():
        count = getattr(usage, source, None)
        if isinstance(count, int):
            counted[name] = count
    return counted
