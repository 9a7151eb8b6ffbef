"""The ids of calls: some servers number the calls of each answer from nought, and a message holds several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse


class CallIds:
    """Of one answer. A call whose id the message has already gets one that it does not have."""

    def __init__(self, is_taken: Callable[[str], bool]) -> None:
        self._is_taken = is_taken
        self._by_index: dict[int, str] = {}
        self._given: list[tuple[str, str]] = []  # what the model said, and what it became

    def event(self, event: Any) -> Any:
        """The event, with the id that its call has here."""
        part: Any = getattr(event, "part", None)
        if getattr(part, "part_kind", None) != "tool-call":
            return event
        said = part.tool_call_id
        id = self._by_index.get(event.index)
        if id is None:
            id = self._by_index[event.index] = self._free(said)
            self._given.append((said, id))
        return event if id == said else replace(event, part=replace(part, tool_call_id=id))

    def _free(self, said: str) -> str:
        id, number = said, 1
        while self._is_taken(id) or any(id == given for _, given in self._given):
            number += 1
            id = f"{said}-{number}"
        return id

    def response(self, response: ModelResponse) -> ModelResponse:
        """The whole answer, likewise."""
        if all(said == id for said, id in self._given):
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
