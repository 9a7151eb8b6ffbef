"""Requests that pass the beginning of an answer to the provider, which continues it.

`continuation` says which provider can, and how it is spelled. Pydantic AI has no setting for a flag at the
last message, or for another address: then a copy of the model is asked, which maps messages as the model does
and marks the last one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from outlast.chat.model.continuation import Prefill
from outlast.chat.model.request import models_behind
from outlast.chat.seam.instruct import continue_instruction
from outlast.chat.seam.prefilled import sent_text

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings


def last_text(messages: Sequence[ModelMessage]) -> str | None:
    """Return the text that a conversation ends with, if it is the model's; otherwise None."""
    if not messages or messages[-1].kind != "response" or not messages[-1].parts:
        return None
    part = messages[-1].parts[-1]
    return part.content if part.part_kind == "text" else None


def prefilled(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """The same conversation, ending with the text that the model is to continue.

    White space at its end is left out: `seam.prefilled` says why. Everything before it stays what it was.
    """
    text = last_text(messages)
    if text is None or not sent_text(text):
        raise ValueError("a prefilled conversation must end with text of the model")
    last = cast("Any", messages[-1])
    part = replace(last.parts[-1], content=sent_text(text))
    return [*messages[:-1], replace(last, parts=[*last.parts[:-1], part])]


def instruction(messages: Sequence[ModelMessage]) -> str:
    """Return the prompt for `with_continuation` after a conversation that ends with the model's text."""
    return continue_instruction(last_text(messages) or "")


def prefill_settings(settings: ModelSettings | None, prefill: Prefill) -> ModelSettings:
    """Add the fields that request a prefill. Settings of the user take precedence."""
    merged = cast("ModelSettings", dict(settings or {}))
    if prefill.body:
        given = merged.get("extra_body")
        own = dict(given) if isinstance(given, Mapping) else {}
        merged["extra_body"] = {**prefill.body, **own}
    return merged


def prefill_model(model: Model, prefill: Prefill) -> Model:
    """Return this model, or a copy that marks the last message or uses another address."""
    if prefill.flag is None and prefill.path is None:
        return model
    [inner] = models_behind(model)
    copied: Any = copy.copy(inner)
    if prefill.path is not None:
        provider = copied._provider = copy.copy(copied._provider)
        client = provider.client
        path = urlsplit(str(client.base_url)).path.rstrip("/")
        if not path.endswith(prefill.path):
            address = str(client.base_url).removesuffix("/").removesuffix(path) + prefill.path
            provider._client = client.with_options(base_url=address)
    if prefill.flag is not None:
        copied._map_messages = _flagging(copied._map_messages, prefill.flag)
    return cast("Model", copied)


def _flagging(map_messages: Any, flag: str) -> Any:
    """Wrap a model's message mapping, so that the last message gets a flag."""

    async def mapped(*args: Any, **kwargs: Any) -> Any:
        messages = await map_messages(*args, **kwargs)
        last = messages[-1]
        if isinstance(last, dict):
            last[flag] = True
        else:
            setattr(last, flag, True)
        return messages

    return mapped
