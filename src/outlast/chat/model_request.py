"""What is sent to a model: a conversation that every provider takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from outlast.chat.history import with_continuation

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings


def request_messages(
    model: Model, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
) -> list[ModelMessage]:
    """A conversation as this model takes it: every call has its result, and the user has the last word.

    Thoughts that were cut off lack the signature that providers ask for, and are left out.
    """
    from pydantic_ai.messages import ModelResponse, ThinkingPart, repair_messages

    kept: list[ModelMessage] = []
    for message in messages:
        if isinstance(message, ModelResponse) and message.state in ("incomplete", "interrupted"):
            parts = [
                part
                for part in message.parts
                if not isinstance(part, ThinkingPart) or part.signature
            ]
            if not parts:
                continue
            message = replace(message, parts=parts)
        kept.append(message)
    kept = with_continuation(repair_messages(kept))
    return model.prepare_messages(kept, parameters)


def request_parameters(
    messages: Sequence[ModelMessage], parameters: ModelRequestParameters | None
) -> ModelRequestParameters:
    """The parameters, with the instructions of the last message that has some unless they have their own."""
    from pydantic_ai.messages import InstructionPart, ModelRequest
    from pydantic_ai.models import ModelRequestParameters

    parameters = parameters or ModelRequestParameters()
    if parameters.instruction_parts is None:
        for message in reversed(messages):
            if isinstance(message, ModelRequest) and message.instructions is not None:
                return replace(
                    parameters, instruction_parts=[InstructionPart(message.instructions)]
                )
    return parameters


def request_settings(model: Model, settings: ModelSettings | None) -> ModelSettings:
    """The settings, with the retries of the provider's package switched off: we make our own."""
    given = cast("ModelSettings", dict(settings or {}))
    if "max_retries" not in given and not any(
        "max_retries" in inner.unsupported_settings for inner in models_behind(model)
    ):
        given["max_retries"] = 0
    return given


def models_behind(model: Model) -> list[Model]:
    """The models that requests end up with: this one, or those that it wraps."""
    wrapped = [getattr(model, "wrapped", None), *getattr(model, "models", ())]
    inner = [deeper for other in wrapped if other is not None for deeper in models_behind(other)]
    return inner or [model]
