"""What an interrupted turn had said, folded from its stored chunks, and the seam to what comes next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.chat.message.chunk_json import METADATA_KEY, encoded
from outlast.chat.message.open_parts import BROKEN_OFF
from outlast.chat.message.reducer import MessageBuilder, cleaned, is_empty, text_of
from outlast.chat.message.tool_part import is_settled, tool_name
from outlast.core import json

RESET_STEP = '{"type":"reset-step"}'

_PRODUCED = frozenset(
    {
        "text-delta",
        "reasoning-delta",
        "tool-input-delta",
        "tool-input-available",
        "tool-output-available",
        "file",
    }
)
"""What counts as progress. Errors and ends do not: recovery itself writes such."""


@dataclass(slots=True)
class Partial:
    """The message so far, and in the middle of what it broke off."""

    builder: MessageBuilder
    produced: int = 0
    is_step_open: bool = False
    is_step_whole: bool = False  # the last chunk of all was the end of a step
    has_begun: bool = False  # a step of this attempt, not of the message that it goes on with
    message_id: str | None = None  # of the message that the last `start` has begun
    _in_step: list[tuple[str, str]] = field(default_factory=list)  # kind and id
    _texts: list[str] = field(default_factory=list)  # the ids of those that have no end yet
    _reasonings: list[str] = field(default_factory=list)
    _inputs: dict[str, tuple[str, list[str]]] = field(default_factory=dict)  # name, and what came

    @property
    def raw(self) -> dict[str, Any]:
        """The message as it was seen."""
        return self.builder.message()

    @property
    def text(self) -> str:
        return text_of(self.raw)

    def says_more_than(self, begun: Mapping[str, Any] | None) -> bool:
        """Whether there is anything to keep, besides the message that the turn has begun with."""
        kept = cleaned(self.raw)
        if kept is None or is_empty(kept):
            return False
        return begun is None or _without_steps(kept) != _without_steps(begun)

    @property
    def steps(self) -> int:
        """How many requests to the model it stands for."""
        return sum(_is_step(part) for part in self.raw["parts"])

    @property
    def last_step(self) -> list[dict[str, Any]]:
        """The parts of the last one."""
        parts = [part for part in self.raw["parts"] if isinstance(part, dict)]
        places = [place for place, part in enumerate(parts) if _is_step(part)]
        return parts[places[-1] + 1 :] if places else []

    @property
    def last_calls(self) -> list[dict[str, Any]]:
        """The calls of the last step that we run, or the client does."""
        return [part for part in self.last_step if is_ours(part)]

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [part for part in self.raw["parts"] if is_ours(part)]

    @property
    def is_complete(self) -> bool:
        """Whether the model had said everything: a whole step that calls nothing."""
        return self.is_step_whole and not self.last_calls

    @property
    def has_settled_work(self) -> bool:
        return any(is_settled(part) for part in self.calls)

    @property
    def open_text(self) -> str | None:
        """The id of the text in whose middle it broke off; None: it was not in a text."""
        if not self._texts or not self.is_step_open or self._reasonings or self._inputs:
            return None
        kinds = [str(part.get("type")) for part in self.last_step]
        said = [kind for kind in kinds if not kind.startswith("data-")]
        return self._texts[-1] if said and said[-1] == "text" else None

    @property
    def part_ids(self) -> list[tuple[str, str, bool]]:
        """The texts and thoughts of the last step: kind, id, and whether it is open."""
        return [
            (kind, id, id == self.open_text or (kind == "reasoning" and id in self._reasonings))
            for kind, id in self._in_step
        ]

    def seam(self) -> list[str]:
        """The chunks that end what nobody will go on with. The text in whose middle it broke off stays open.

        A thought without its end is marked, for its provider takes back only what it has signed. A call
        whose input never became complete was never made.
        """
        kept = self.open_text
        note = {"providerMetadata": {METADATA_KEY: {"unfinished": True}}}
        chunks = [encoded({"type": "reasoning-end", "id": id, **note}) for id in self._reasonings]
        chunks += [encoded({"type": "text-end", "id": id}) for id in self._texts if id != kept]
        for id, (name, pieces) in self._inputs.items():
            failed = {"type": "tool-input-error", "toolCallId": id, "toolName": name}
            chunks.append(encoded({**failed, "input": "".join(pieces), "errorText": BROKEN_OFF}))
        self.take(chunks)
        return chunks

    def ended(self) -> list[str]:
        """After the seam: that text ends too, for another message goes on."""
        kept = self.open_text
        return [] if kept is None else [encoded({"type": "text-end", "id": kept})]

    def discarded(self) -> list[str]:
        """The chunks that take back what was said, for those who have seen it: it is said anew."""
        return [RESET_STEP] if self.has_begun and self.last_step else []

    def move_on_to(self, message_id: str | None) -> None:
        """The answer goes on in this message. What was said before it has begun is none of it."""
        if self.message_id != message_id and self.raw["parts"]:
            self.take([encoded({"type": "start", "messageId": message_id})])

    def take(self, chunks: Iterable[str]) -> None:
        """More of the stream."""
        for text in chunks:
            try:
                chunk = json.decode(text)
            except ValueError:
                continue  # "" where a row is missing, or damaged
            if isinstance(chunk, dict):
                self._take(chunk)
                self.builder.apply(chunk)

    def _take(self, chunk: Mapping[str, Any]) -> None:
        kind, id, call = chunk.get("type"), chunk.get("id"), chunk.get("toolCallId")
        if not isinstance(kind, str):
            return
        if kind.startswith("data-"):
            return  # the application's own: wherever they stand, they say nothing of the model
        if kind in _PRODUCED:
            self.produced += 1
        self.is_step_whole = kind == "finish-step"
        if kind == "start":
            self.message_id = chunk.get("messageId")
            self.is_step_open = self.has_begun = False
            self._end_all()
        elif kind in ("start-step", "finish-step"):
            self.is_step_open = kind == "start-step"
            self.has_begun = True
            self._end_all()
        elif kind == "reset-step":
            self._end_all()
        elif kind == "text-start" and isinstance(id, str):
            self._texts.append(id)
            self._in_step.append(("text", id))
        elif kind == "reasoning-start" and isinstance(id, str):
            self._reasonings.append(id)
            self._in_step.append(("reasoning", id))
        elif kind == "text-end" and id in self._texts:
            self._texts.remove(str(id))
        elif kind == "reasoning-end" and id in self._reasonings:
            self._reasonings.remove(str(id))
        elif kind == "tool-input-start" and isinstance(call, str):
            self._inputs[call] = (str(chunk.get("toolName")), [])
        elif kind == "tool-input-delta" and isinstance(call, str) and call in self._inputs:
            self._inputs[call][1].append(str(chunk.get("inputTextDelta") or ""))
        elif kind.startswith("tool-") and isinstance(call, str):
            self._inputs.pop(call, None)

    def _end_all(self) -> None:
        self._texts.clear()
        self._reasonings.clear()
        self._inputs.clear()
        self._in_step.clear()


def folded(chunks: Sequence[str], begun: Mapping[str, Any] | None = None) -> Partial:
    """What these chunks come to; `begun` is the message that the turn goes on with."""
    partial = Partial(MessageBuilder(begun))
    partial.take(chunks)
    return partial


def _without_steps(message: Mapping[str, Any]) -> list[Any]:
    parts = message.get("parts")
    return [part for part in parts if not _is_step(part)] if isinstance(parts, list) else []


def _is_step(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "step-start"


def is_ours(part: object) -> bool:
    """Whether it is a call that we run, or the client does."""
    return (
        isinstance(part, dict)
        and tool_name(part) is not None
        and part.get("providerExecuted") is not True
    )
