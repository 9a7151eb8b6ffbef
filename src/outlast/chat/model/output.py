"""Structured answers: requested from the model as JSON of a type, and validated when they arrive."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from outlast.chat.model.request import models_behind
from outlast.core.errors import OutlastError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters

ANSWER = "final_answer"  # the output tool, for models without a JSON format
_ASK = "Call this with your answer as soon as you have it, instead of writing it as text."


class OutputInvalid(OutlastError, ValueError):
    """The model's answer does not validate as the requested type."""


class OutputType:
    """A type: a Pydantic model, a dataclass, a TypedDict, or anything else that Pydantic can validate."""

    def __init__(self, kind: Any) -> None:
        from pydantic import TypeAdapter, create_model

        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        self._name = getattr(kind, "__name__", "answer")
        self._schema = self._adapter.json_schema()
        self._wrapper: Any = None
        if not _is_object(self._schema):  # providers accept only objects
            self._wrapper = create_model("Answer", response=(kind, ...))
            self._schema = self._wrapper.model_json_schema()

    def asked_of(self, model: Model, parameters: ModelRequestParameters) -> ModelRequestParameters:
        """Return parameters that request this type in the way that suits the model best.

        If that is a tool, `open_stream` returns the call's arguments as text, so that an answer looks the
        same for every model.
        """
        from pydantic_ai.output import OutputObjectDefinition
        from pydantic_ai.tools import ToolDefinition

        mode = output_mode([inner.profile for inner in models_behind(model)], parameters)
        description = self._schema.get("description")
        if mode == "tool":
            name = ANSWER
            while name in parameters.tool_defs:
                name += "_"
            tool = ToolDefinition(
                name=name,
                description=f"{description or 'The answer.'} {_ASK}",
                parameters_json_schema=self._schema,
                kind="output",
            )
            return replace(
                parameters, output_mode="tool", output_tools=[tool], allow_text_output=False
            )
        wanted = OutputObjectDefinition(
            json_schema=self._schema,
            name=re.sub(r"[^a-zA-Z0-9_-]", "_", self._name)[:64],
            description=description,
        )
        return replace(parameters, output_mode=mode, output_object=wanted)

    def value_of(self, response: ModelResponse) -> Any:
        """Return the answer as a value of the type; None if the response calls tools instead."""
        if response.tool_calls:
            return None
        try:
            return self.parsed(response.text or "")
        except OutputInvalid:
            # The model may have written a text before its answer.
            texts = [part.content for part in response.parts if part.part_kind == "text"]
            if len(texts) < 2:
                raise
        return self.parsed(texts[-1])

    def parsed(self, text: str) -> Any:
        """Parse an answer, with or without a Markdown fence around the JSON."""
        from pydantic import ValidationError

        text = text.strip()
        if text.startswith("```"):
            text = text.strip("`").removeprefix("json").strip()
        if self._wrapper is not None:
            try:
                return self._wrapper.model_validate_json(text).response
            except ValidationError:
                pass  # try without the wrapper
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise OutputInvalid(f"the answer does not validate as {self._name}: {error}") from error


def output_mode(
    profiles: Sequence[Mapping[str, Any]], parameters: ModelRequestParameters
) -> Literal["native", "tool", "prompted"]:
    """Return how to request JSON from models of these profiles: as a format, by a tool, or by a prompt."""
    # Gemini before 3 accepts either a format or tools, and either the provider's tools or ours.
    combines = all(each.get("google_supports_tool_combination", True) for each in profiles)
    has_tools = bool(parameters.function_tools or parameters.native_tools)
    knows_formats = all(each.get("supports_json_schema_output", False) for each in profiles)
    if knows_formats and (combines or not has_tools):
        return "native"
    knows_tools = all(each.get("supports_tools", True) for each in profiles)
    if knows_tools and (combines or not parameters.native_tools):
        return "tool"
    return "prompted"


def _is_object(schema: Mapping[str, Any]) -> bool:
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    return bool(schema.get("$defs", {}).get(name, schema).get("type") == "object")
