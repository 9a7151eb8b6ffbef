"""A recorded request to the model, as it is passed to Pydantic AI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import ModelRequestParameters


@dataclass(frozen=True, slots=True, repr=False)
class ModelAsk:
    """One request. The loop keeps modifying its messages, so keep `as_json()` instead of the object."""

    messages: Sequence[ModelMessage]
    settings: Mapping[str, Any]
    parameters: ModelRequestParameters
    instructions: str | None

    def __repr__(self) -> str:  # a conversation is not for the log
        return f"<{len(self.messages)} messages, {len(self.parameters.function_tools)} tools>"

    def as_json(self) -> dict[str, Any]:
        """Return the current messages, settings, tools and instructions."""
        from pydantic_ai.messages import ModelMessagesTypeAdapter

        tools = [
            {
                "name": each.name,
                "description": each.description,
                "inputSchema": each.parameters_json_schema,
            }
            for each in self.parameters.function_tools
        ]
        return {
            "instructions": self.instructions,
            "messages": ModelMessagesTypeAdapter.dump_python(list(self.messages), mode="json"),
            "settings": {name: _shown(name, value) for name, value in self.settings.items()},
            "tools": tools,
            "outputMode": self.parameters.output_mode,
        }


def _shown(name: str, value: Any) -> Any:
    """Return a setting as JSON; headers without their values, which may be secrets."""
    if name == "extra_headers" and isinstance(value, Mapping):
        return {str(header): "…" for header in value}
    return _plain(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return repr(value)
