"""What a model needs before it can be used: a package and a key. Checked without importing anything."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider of models: its package, the extra of outlast that installs it, and its key variables."""

    package: str
    extra: str | None
    keys: tuple[str, ...]


PROVIDERS = {
    "anthropic": Provider("anthropic", "anthropic", ("ANTHROPIC_API_KEY",)),
    "openai": Provider("openai", "openai", ("OPENAI_API_KEY",)),
    "openai-chat": Provider("openai", "openai", ("OPENAI_API_KEY",)),
    "openai-responses": Provider("openai", "openai", ("OPENAI_API_KEY",)),
    "google": Provider("google.genai", "google", ("GOOGLE_API_KEY", "GEMINI_API_KEY")),
    "google-gla": Provider("google.genai", "google", ("GOOGLE_API_KEY", "GEMINI_API_KEY")),
    "google-vertex": Provider("google.genai", "google", ()),
    "groq": Provider("groq", None, ("GROQ_API_KEY",)),
    "mistral": Provider("mistralai", None, ("MISTRAL_API_KEY",)),
    "cohere": Provider("cohere", None, ("CO_API_KEY",)),
    "bedrock": Provider("boto3", None, ()),
    "openrouter": Provider("openai", "openai", ("OPENROUTER_API_KEY",)),
    "deepseek": Provider("openai", "openai", ("DEEPSEEK_API_KEY",)),
    "ollama": Provider("openai", "openai", ()),
}


def problems_of(
    model: object,
    environment: Mapping[str, str] | None = None,
    is_installed: Callable[[str], bool] | None = None,
) -> list[str]:
    """Return what is missing for a model that is given as a string; empty for any other model.

    ```python
    from outlast.cli.models import problems_of
    assert problems_of("anthropic:claude-sonnet-5", {}, lambda package: True) == [
        "anthropic:claude-sonnet-5 needs a key: set ANTHROPIC_API_KEY"
    ]
    ```
    """
    if not isinstance(model, str):
        return []
    from outlast.cli.suggest import suggestion

    environment = os.environ if environment is None else environment
    is_installed = installed if is_installed is None else is_installed
    prefix, colon, _ = model.partition(":")
    provider = PROVIDERS.get(prefix)
    if not colon or provider is None:
        hint = suggestion(prefix, PROVIDERS) if colon else ""
        if hint.startswith(". Did"):
            return [f"{model!r} names an unknown provider{hint}"]
        return []  # Pydantic AI supports more providers
    if not is_installed(provider.package):
        name = f"outlast[{provider.extra}]" if provider.extra else provider.package
        return [f"{model} needs a package: pip install '{name}'"]
    if provider.keys and not any(environment.get(key) for key in provider.keys):
        return [f"{model} needs a key: set {' or '.join(provider.keys)}"]
    return []


def installed(package: str) -> bool:
    """Return whether a package can be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
