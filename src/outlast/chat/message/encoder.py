"""What a model streams, as chunks of the AI SDK's UI message stream.

A chunk is JSON text and is encoded once: the same text goes to the store and to every browser. Ids
are made of the step's number and the part's place in it, so a replay after a crash names the same
parts as the first time did. What a browser has no use for, but the next request needs (signatures,
provider ids and details), travels in `providerMetadata` under the key `outlast`;
`outlast.chat.context.history` reads it back.

Events are told apart by the kinds they carry, not by their classes: nothing here loads Pydantic AI,
and parts and events that do not exist yet are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from outlast.chat.message.chunk_json import FOR_CLIENT, encoded, known, metadata_of
from outlast.chat.message.open_parts import (
    GrowingCall,
    GrowingPart,
    GrowingText,
    MadeFile,
    MoreText,
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
        self._left: str | None = None  # the text that an earlier attempt has left open
        self._open: dict[int, GrowingPart] = {}
        self._ended: dict[int, GrowingPart] = {}
        self._slots = 0  # model parts that this step has shown so far
        self._call_slots: dict[str, int] = {}

    # --- the message and its steps ---------------------------------------------------------------

    def start(self, message_id: str | None = None, metadata: object = None) -> str:
        """The first chunk. A continuation has no `message_id`: it goes on with the last message."""
        chunk: dict[str, object] = {"type": "start"}
        if message_id is not None:
            chunk["messageId"] = message_id
        if metadata is not None:
            chunk["messageMetadata"] = metadata
        return encoded(chunk)

    def start_step(self, step: int) -> str:
        """A request to the model begins; `step` makes the ids of its parts and must not repeat."""
        self._step = str(step)
        self._forget()
        return '{"type":"start-step"}'

    def resume_step(self, label: str, open_text: str | None, slots: int) -> None:
        """Go on in a step that an earlier attempt began, with the text that it left open if there is one.

        The label makes the ids of the parts that are new; `slots` model parts were shown already.
        """
        self._forget()
        self._step, self._left, self._slots = label, open_text, slots

    def resume_parts(self, label: str, shown: Sequence[tuple[str, str, bool]]) -> None:
        """Go on with these parts of an answer, each by its place: kind, id, and if it is open."""
        self._forget()
        self._step, self._slots = label, len(shown)
        for index, (kind, part_id, is_open) in enumerate(shown):
            part = GrowingText(kind, part_id, index)
            (self._open if is_open else self._ended)[index] = part

    def end_response(self) -> list[str]:
        """The model's stream is complete: ends what is open. Call it before any tool runs."""
        chunks = self._left_alone()
        chunks += [chunk for part in self._open.values() for chunk in part.end(None)]
        self._ended.update(self._open)
        self._open.clear()
        return chunks

    def finish_step(
        self, response: object = None, usage: Mapping[str, Any] | None = None
    ) -> list[str]:
        """The step is over, tools included; `response` is the model's, whose origin is noted."""
        chunks = self.end_response()
        origin = known(response, _RESPONSE_FIELDS)
        if usage:
            origin["usage"] = dict(usage)
        chunks.append(encoded({"type": "finish-step", **metadata_of(origin)}))
        self._forget()
        return chunks

    def finish(
        self, finish_reason: str | None = None, usage: object = None, metadata: object = None
    ) -> str:
        """The message is complete. `usage` is Pydantic AI's, or a dict as it shall be shown."""
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
        """Merged into the message's metadata."""
        return encoded({"type": "message-metadata", "messageMetadata": metadata})

    def data(
        self, name: str, data: object, *, data_id: str | None = None, transient: bool = False
    ) -> str:
        """A part of the application's own; a transient one is shown and not stored."""
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
        """Ends what a stream that broke off left open: half a call becomes a failed one."""
        chunks = self._left_alone()
        chunks += [chunk for part in self._open.values() for chunk in part.broken()]
        self._forget()
        return chunks

    # --- tools -----------------------------------------------------------------------------------

    def tool_output(self, call_id: str, output: object, *, preliminary: bool = False) -> str:
        """What a tool returned; a `TypeError` when that can in no way be JSON."""
        chunk = {"type": "tool-output-available", "toolCallId": call_id, "output": output}
        return encoded({**chunk, "preliminary": True} if preliminary else chunk)

    def tool_output_text(self, call_id: str, output: str) -> str:
        """The same, of an output that is JSON text already."""
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
        """The call failed; "retried" when the model was asked to call again; or nobody knows.

        `detail` is what clients are not shown; with `for_model`, the model is. `mark`: whether
        `repair_interrupted_tool_part` was asked.
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
        """`for_client`: the client runs the call once it is approved, and waits for that."""
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

    # --- what the model streams ------------------------------------------------------------------

    def more_text(self, event: Any) -> MoreText | None:
        """Of the usual event, more of a text: what it adds, and its chunk. None: it is another event.

        Whoever builds the message need not decode what has just been encoded.
        """
        if getattr(event, "event_kind", None) != "part_delta":
            return None
        part = self._open.get(event.index)
        return part.more(event.delta) if isinstance(part, GrowingText) else None

    def event(self, event: Any) -> list[str]:
        """The chunks of one event of a model's stream; none for what is not shown."""
        kind = getattr(event, "event_kind", None)
        if kind == "part_delta":
            part = self._open.get(event.index) or self._reopened(event.index)
            return part.delta(event.delta) if part is not None else []
        if kind == "part_start":
            return self._started(event.index, event.part)
        if kind == "part_end":
            part = self._open.get(event.index)
            # A call whose arguments go on after its "end" (calls that interleave) stays open.
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
            return chunks  # a part that was shown as complete is not shown twice
        kind = getattr(part, "part_kind", None)
        begun: GrowingPart
        if kind == "text" and self._left is not None:
            resumed = GrowingText("text", self._left, self._slots - 1)
            self._left, self._open[index] = None, resumed
            return chunks + resumed.begin(part)[1:]  # it has begun
        chunks += self._left_alone()
        if kind == "text" or (kind == "thinking" and self._send_reasoning):
            name = f"s{self._step}-{index}" + ("" if again is None else "-again")
            begun = GrowingText("text" if kind == "text" else "reasoning", name, self._slots)
        elif kind in ("tool-call", "builtin-tool-call"):
            begun = GrowingCall(part)
            self._call_slots[part.tool_call_id] = self._slots
        elif kind == "file":
            begun = MadeFile(part)
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

    def _left_alone(self) -> list[str]:
        """Ends the text of an earlier attempt that nothing was added to."""
        left, self._left = self._left, None
        return [] if left is None else [encoded({"type": "text-end", "id": left})]

    def _reopened(self, index: int) -> GrowingPart | None:
        """More of a text that was ended already: shown as a part that says which one it continues."""
        ended = self._ended.get(index)
        if not isinstance(ended, GrowingText):
            return None
        self._open[index] = ended.continued()
        return self._open[index]

    def _returned(self, part: Any) -> str:
        details = known(part, ("provider_name", "provider_details", "tool_kind"))
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
