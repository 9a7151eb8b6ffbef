"""The partial answer of an interrupted turn, folded from its chunks, and the seam to what follows. Pure."""

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
"""The chunks that count as progress. Errors and ends do not, because recovery itself writes them."""


@dataclass(slots=True)
class Partial:
    """The message so far, and the parts in whose middle it was interrupted."""

    builder: MessageBuilder
    produced: int = 0
    is_step_open: bool = False
    is_step_whole: bool = False  # the last chunk was the end of a step
    has_begun: bool = (
        False  # a step of this attempt has begun, not only of the message it continues
    )
    message_id: str | None = None  # of the message that the last `start` began
    _in_step: list[tuple[str, str]] = field(default_factory=list)  # kind and id
    _texts: list[str] = field(default_factory=list)  # the ids of open texts
    _reasonings: list[str] = field(default_factory=list)
    _inputs: dict[str, tuple[str, list[str]]] = field(default_factory=dict)  # name and pieces

    @property
    def raw(self) -> dict[str, Any]:
        """The message as clients saw it."""
        return self.builder.message()

    @property
    def text(self) -> str:
        return text_of(self.raw)

    def adds_to(self, begun: Mapping[str, Any] | None) -> bool:
        """Return whether there is anything to keep, besides the message that the turn began with."""
        kept = cleaned(self.raw)
        if kept is None or is_empty(kept):
            return False
        return begun is None or _without_steps(kept) != _without_steps(begun)

    @property
    def steps(self) -> int:
        """The number of requests to the model that it contains."""
        return sum(_is_step(part) for part in self.raw["parts"])

    @property
    def last_step(self) -> list[dict[str, Any]]:
        """The parts of the last step."""
        parts = [part for part in self.raw["parts"] if isinstance(part, dict)]
        places = [place for place, part in enumerate(parts) if _is_step(part)]
        return parts[places[-1] + 1 :] if places else []

    @property
    def last_calls(self) -> list[dict[str, Any]]:
        """The calls of the last step that the agent or the client runs."""
        return [part for part in self.last_step if is_ours(part)]

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [part for part in self.raw["parts"] if is_ours(part)]

    @property
    def is_complete(self) -> bool:
        """Whether the model had finished: the last step ended and has no calls."""
        return self.is_step_whole and not self.last_calls

    @property
    def has_settled_work(self) -> bool:
        return any(is_settled(part) for part in self.calls)

    @property
    def open_text(self) -> str | None:
        """The id of the text in whose middle it was interrupted, or None."""
        if not self._texts or not self.is_step_open or self._reasonings or self._inputs:
            return None
        kinds = [str(part.get("type")) for part in self.last_step]
        of_model = [kind for kind in kinds if not kind.startswith("data-")]
        return self._texts[-1] if of_model and of_model[-1] == "text" else None

    @property
    def part_ids(self) -> list[tuple[str, str, bool]]:
        """The text and reasoning parts of the last step: kind, id, and whether it is open."""
        return [
            (kind, id, id == self.open_text or (kind == "reasoning" and id in self._reasonings))
            for kind, id in self._in_step
        ]

    def seam(self) -> list[str]:
        """Return the chunks that end the open parts. The text in whose middle it was interrupted stays open.

        Unfinished reasoning is marked, because its provider accepts only reasoning that it has signed. A call
        whose input is incomplete counts as never made.
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
        """Return the chunk that ends the open text, too, when another message continues."""
        kept = self.open_text
        return [] if kept is None else [encoded({"type": "text-end", "id": kept})]

    def discarded(self) -> list[str]:
        """Return the chunk that removes the last step for clients: it is generated again."""
        return [RESET_STEP] if self.has_begun and self.last_step else []

    def start_message(self, message_id: str | None) -> None:
        """Continue in this message, dropping the parts of an earlier one."""
        if self.message_id != message_id and self.raw["parts"]:
            self.take([encoded({"type": "start", "messageId": message_id})])

    def take(self, chunks: Iterable[str]) -> None:
        """Apply more chunks of the stream."""
        for text in chunks:
            try:
                chunk = json.decode(text)
            except ValueError:
                continue  # "" if a row is missing, or damaged
            if isinstance(chunk, dict):
                self._take(chunk)
                self.builder.apply(chunk)

    def _take(self, chunk: Mapping[str, Any]) -> None:
        kind, id, call = chunk.get("type"), chunk.get("id"), chunk.get("toolCallId")
        if not isinstance(kind, str):
            return
        if kind.startswith("data-"):
            return  # data parts of the application are not output of the model
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
    """Fold chunks into a partial answer; `begun` is the message that the turn continues."""
    partial = Partial(MessageBuilder(begun))
    partial.take(chunks)
    return partial


def _without_steps(message: Mapping[str, Any]) -> list[Any]:
    parts = message.get("parts")
    return [part for part in parts if not _is_step(part)] if isinstance(parts, list) else []


def _is_step(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "step-start"


def is_ours(part: object) -> bool:
    """Return whether this is a call that the agent or the client runs, not the provider."""
    return (
        isinstance(part, dict)
        and tool_name(part) is not None
        and part.get("providerExecuted") is not True
    )
