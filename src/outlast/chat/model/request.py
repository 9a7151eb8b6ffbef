"""Builds a request to a model, such that every provider accepts it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from outlast.chat.model.beginnings import with_beginning, with_continuation
from outlast.chat.model.files import with_readable_files

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.models.instrumented import InstrumentationSettings
    from pydantic_ai.settings import ModelSettings

_CHOICES = ("auto", "none", "required")
_UNPAIRED = frozenset({"user-prompt", "system-prompt", "text", "thinking"})


def request_messages(
    model: Model,
    messages: Sequence[ModelMessage],
    parameters: ModelRequestParameters,
    *,
    is_prefilled: bool = False,
) -> list[ModelMessage]:
    """Return a conversation in a form that this model accepts.

    It begins and ends with the user, unless `is_prefilled`: then the model continues its own text. Every call
    has its result; consecutive answers are joined. Omitted is what providers reject: reasoning that was cut
    off and lacks its signature, texts of white space only, and files that the model cannot read.
    """
    from pydantic_ai.messages import repair_messages

    kept: list[ModelMessage] = []
    for message in messages:
        if message.kind == "response":
            is_cut_off = message.state in ("incomplete", "interrupted")
            parts = [part for part in message.parts if _can_be_sent(part, is_cut_off)]
            if not parts:
                continue
            if len(parts) < len(message.parts):
                message = replace(message, parts=parts)
        kept.append(message)
    kept = with_beginning(kept)
    if not _is_plain(kept):
        kept = _joined_answers(repair_messages(kept))
    profiles = [inner.profile for inner in models_behind(model)]
    if not is_prefilled:
        kept = with_continuation(kept)
    kept = with_readable_files(kept, profiles)
    return model.prepare_messages(kept, parameters)


def _is_plain(messages: Sequence[ModelMessage]) -> bool:
    """Return whether questions and answers alternate without any tool call: nothing needs repair."""
    last = None
    for message in messages:
        kind = message.kind
        if kind == last:
            return False
        last = kind
        for part in message.parts:
            if part.part_kind not in _UNPAIRED:
                return False
    return True


def _can_be_sent(part: Any, is_cut_off: bool) -> bool:
    """Return whether providers accept a part: not unsigned reasoning cut off, nor bare white space."""
    kind = part.part_kind
    if kind == "thinking":
        return not is_cut_off or bool(part.signature)
    if kind != "text" or (part.content and not part.content.isspace()):
        return True
    return bool(part.id or part.provider_details)


def _joined_answers(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Join consecutive answers of one provider: the second continues the first.

    Google rejects a call that follows neither a user's message nor a result.
    """
    joined: list[ModelMessage] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is None or last.kind == "request" or message.kind == "request":
            joined.append(message)
        elif last.provider_name in (None, message.provider_name):
            joined[-1] = replace(message, parts=[*last.parts, *message.parts])
        elif message.provider_name is None:
            joined[-1] = replace(last, parts=[*last.parts, *message.parts])
        else:
            joined.append(message)
    return joined


def request_parameters(
    messages: Sequence[ModelMessage],
    parameters: ModelRequestParameters | None,
    instructions: str | None = None,
) -> ModelRequestParameters:
    """Return the parameters with instructions: their own, else these, else those of the last message."""
    from pydantic_ai.messages import InstructionPart, ModelRequest
    from pydantic_ai.models import ModelRequestParameters

    parameters = parameters or ModelRequestParameters()
    if parameters.instruction_parts is not None:
        return parameters
    if instructions is None:
        given = (m.instructions for m in reversed(messages) if isinstance(m, ModelRequest))
        instructions = next((each for each in given if each is not None), None)
    if instructions is None:
        return parameters
    parts = [InstructionPart(instructions)] if instructions.strip() else []
    return replace(parameters, instruction_parts=parts)


def request_settings(
    model: Model, settings: ModelSettings | None, parameters: ModelRequestParameters | None = None
) -> ModelSettings:
    """Return the settings, with the retries of the provider's package disabled in favour of our own.

    Unknown names in `tool_choice` are dropped; raises `ValueError` if none is left.
    """
    given = cast("ModelSettings", dict(settings or {}))
    if "max_retries" not in given and not any(
        "max_retries" in inner.unsupported_settings for inner in models_behind(model)
    ):
        given["max_retries"] = 0
    choice = given.get("tool_choice")
    if parameters is not None and isinstance(choice, list) and choice:
        known = [name for name in choice if name in parameters.tool_defs]
        if not known:
            there = ", ".join(sorted(parameters.tool_defs)) or "none"
            wanted = ", ".join(map(repr, choice))
            raise ValueError(f"tool_choice must name tools of this request ({there}), got {wanted}")
        given["tool_choice"] = known
    return given


def tool_choice_of(given: Any) -> Any:
    """Return a tool choice for Pydantic AI: one of its keywords, or a list of names."""
    if isinstance(given, str):
        return given if given in _CHOICES else [given]
    return list(given) if isinstance(given, Sequence) else given


def instrumentation(given: InstrumentationSettings | bool | None) -> Any:
    """Return the tracing settings. `True` means Pydantic AI's, without the schemas of tools in each span."""
    if given is not True:
        return given
    from pydantic_ai.models.instrumented import InstrumentationSettings

    return InstrumentationSettings(include_model_request_parameters=False)


def models_behind(model: Model) -> list[Model]:
    """Return the models that receive the requests: this one, or those that it wraps."""
    wrapped = [getattr(model, "wrapped", None), *getattr(model, "models", ())]
    inner = [deeper for other in wrapped if other is not None for deeper in models_behind(other)]
    return inner or [model]
