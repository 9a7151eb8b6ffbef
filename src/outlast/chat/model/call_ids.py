"""Unique ids of calls: some servers number the calls of each answer from 0, and a message has several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse


class CallIds:
    """The call ids of one answer. A call whose id the message already contains gets a new one."""

    def __init__(self, is_taken: Callable[[str], bool]) -> None:
        self._is_taken = is_taken
        self._by_index: dict[int, str] = {}
        self._given: list[tuple[str, str]] = []  # the model's id, and ours

    def event(self, event: Any) -> Any:
        """Return the event with the unique id of its call."""
        part: Any = getattr(event, "part", None)
        if getattr(part, "part_kind", None) != "tool-call":
            return event
        original = part.tool_call_id
        id = self._by_index.get(event.index)
        if id is None:
            id = self._by_index[event.index] = self._free(original)
            self._given.append((original, id))
        return event if id == original else replace(event, part=replace(part, tool_call_id=id))

    def _free(self, original: str) -> str:
        id, number = original, 1
        while self._is_taken(id) or any(id == given for _, given in self._given):
            number += 1
            id = f"{original}-{number}"
        return id

    def response(self, response: ModelResponse) -> ModelResponse:
        """Return the whole answer with unique ids."""
        if all(original == id for original, id in self._given):
            return response
        given = list(self._given)
        parts: list[Any] = []
        for part in response.parts:
            if part.part_kind == "tool-call":
                found = next((pair for pair in given if pair[0] == part.tool_call_id), None)
                if found is not None:
                    given.remove(found)
                    part = replace(part, tool_call_id=found[1])
            parts.append(part)
        return replace(response, parts=parts)
