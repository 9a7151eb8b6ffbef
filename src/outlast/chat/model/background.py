"""Answers that the provider keeps: after a crash they are fetched.

OpenAI keeps an answer that it generates in the background, which goes on without us, and one that it was told
to store, which can be fetched if it was complete when the connection broke.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlast.chat.message.partial import Partial
from outlast.chat.model.answer import is_polled, without_cursor
from outlast.chat.model.request import models_behind
from outlast.core import json

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model

_TEXTS = ("text", "reasoning")


def is_stored(model: Model, settings: Mapping[str, Any]) -> bool:
    """Return whether the provider was told to store the answer to this request."""
    inner = models_behind(model)
    if len(inner) != 1 or type(inner[0]).__name__ != "OpenAIResponsesModel":
        return False
    return {**(inner[0].settings or {}), **settings}.get("openai_store") is True


def note_of(response: ModelResponse, step: int, *, is_stored: bool = False) -> str | None:
    """Return the JSON that is needed to fetch this answer later; None if its provider does not keep it."""
    from pydantic_core import to_jsonable_python

    if is_polled(response):
        given = without_cursor(response).provider_details
    elif is_stored and response.provider_response_id is not None:
        given = {"background": True}  # so that it is fetched as a whole
    else:
        return None
    details = to_jsonable_python(given, fallback=str)
    return json.encode(
        {
            "step": step,
            "id": response.provider_response_id,
            "provider": response.provider_name,
            "model": response.model_name,
            "details": details,
            "is_running": is_polled(response),  # without us
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
