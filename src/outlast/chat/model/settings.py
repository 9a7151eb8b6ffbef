"""Conversion of a turn's settings to Pydantic AI's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from outlast.chat.model.request import tool_choice_of
from outlast.core.clock import seconds

if TYPE_CHECKING:
    from pydantic_ai.settings import ModelSettings


def model_settings(
    *,
    max_output_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    stop_sequences: Sequence[str] | None = None,
    seed: int | None = None,
    timeout: float | timedelta | None = None,
    headers: Mapping[str, str] | None = None,
    tool_choice: str | Sequence[str] | None = None,
    parallel_tool_calls: bool | None = None,
    thinking: bool | str | None = None,
    provider_options: Mapping[str, Any] | None = None,
) -> ModelSettings:
    """Convert settings to Pydantic AI's. None leaves a setting to the model.

    `timeout` limits each wait for the provider, not the whole answer. `tool_choice` is "auto", "none",
    "required", or the names of tools, one of which must be called. `provider_options` are passed unchanged,
    and take precedence: they are for settings of some providers only, such as `openai_reasoning_effort` or
    `extra_body`.

    ```python
    from datetime import timedelta
    from outlast.chat.model.settings import model_settings

    settings = model_settings(
        max_output_tokens=500,
        timeout=timedelta(minutes=1),
        provider_options={"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}},
    )
    assert settings["max_tokens"] == 500
    assert settings["timeout"] == 60.0
    assert settings["anthropic_thinking"]["budget_tokens"] == 1024
    ```
    """
    settings: dict[str, Any] = {
        "max_tokens": max_output_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "stop_sequences": None if stop_sequences is None else list(stop_sequences),
        "seed": seed,
        "timeout": None if timeout is None else seconds(timeout),
        "extra_headers": None if headers is None else dict(headers),
        "tool_choice": None if tool_choice is None else tool_choice_of(tool_choice),
        "parallel_tool_calls": parallel_tool_calls,
        "thinking": thinking,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    return cast("ModelSettings", given | dict(provider_options or {}))
