"""Answers that the provider generates in the background and keeps: after a crash they are fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlast.chat.message.partial import Partial
from outlast.chat.model.answer import is_polled, without_cursor
from outlast.core import json

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model

_TEXTS = ("text", "reasoning")


def note_of(response: ModelResponse, step: int) -> str | None:
    """Return the JSON that is needed to fetch this answer later; None if its provider does not keep it."""
    if not is_polled(response):
        return None
    from pydantic_core import to_jsonable_python

    details = to_jsonable_python(without_cursor(response).provider_details, fallback=str)
    return json.encode(
        {
            "step": step,
            "id": response.provider_response_id,
            "provider": response.provider_name,
            "model": response.model_name,
            "details": details,
        }
    )


def fetchable(note: Any, partial: Partial, model: Model) -> ModelResponse | None:
    """Return the interrupted answer in a form that can be fetched, or None if it cannot."""
    if not isinstance(note, Mapping) or note.get("step") != partial.steps:
        return None
    if not partial.is_step_open or note.get("provider") != model.system:
        return None
    parts = partial.last_step
    if not all(part.get("type") in _TEXTS for part in parts) or not isinstance(note.get("id"), str):
        return None
    from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart

    seen = [
        TextPart(part["text"]) if part["type"] == "text" else ThinkingPart(part["text"])
        for part in parts
    ]
    details = note.get("details")
    return ModelResponse(
        seen,
        model_name=note.get("model"),
        provider_name=note.get("provider"),
        provider_response_id=note["id"],
        provider_details=dict(details) if isinstance(details, Mapping) else None,
        state="suspended",
    )
