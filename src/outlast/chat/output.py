"""Answers of a type that the user gives: asked of the model as JSON, and checked when they arrive."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlast.core.errors import OutlastError

if TYPE_CHECKING:
    from pydantic_ai.models import Model, ModelRequestParameters


class OutputInvalid(OutlastError, ValueError):
    """The model's answer is not of the type that was asked for."""


class OutputType:
    """A type: a Pydantic model, a dataclass, a TypedDict, or anything else that Pydantic can validate."""

    def __init__(self, kind: Any) -> None:
        from pydantic import TypeAdapter

        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        self._name = getattr(kind, "__name__", "answer")
        self._description = getattr(kind, "__doc__", None)

    def asked_of(self, model: Model, parameters: ModelRequestParameters) -> ModelRequestParameters:
        """The request, asking for this type in the way that the model is best at."""
        from pydantic_ai.output import OutputObjectDefinition

        wanted = OutputObjectDefinition(
            json_schema=self._adapter.json_schema(),
            name=self._name,
            description=self._description,
        )
        can = model.profile.get("supports_json_schema_output", False)
        return replace(
            parameters, output_mode="native" if can else "prompted", output_object=wanted
        )

    def parsed(self, text: str) -> Any:
        """The answer as a value of the type; fences that models like to put around JSON are forgiven."""
        from pydantic import ValidationError

        text = text.strip()
        if text.startswith("```"):
            text = text.strip("`").removeprefix("json").strip()
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise OutputInvalid(f"the answer is not a {self._name}: {error}") from error
