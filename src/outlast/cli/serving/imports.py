"""Imports that take long, done once in the supervisor instead of in every worker."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator

AT_ONCE = (  # what every worker needs
    "outlast.server.serving",
    "outlast.chat.think",
    "outlast.store.sqlite.engine",
    "outlast.host.admin.socket",
    "outlast.host.admin.operators",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "pydantic_ai",
    "pydantic_ai.direct",
    "pydantic_ai.models",
    "encodings.idna",
)
SOON = (  # what it may need, and takes seconds; not before the first worker has started
    "outlast.store.postgres.engine",
    "anyio._backends._asyncio",
    "opentelemetry.propagate",
    "openai",
    "pydantic_ai.models.openai",
    "pydantic_ai.providers.openai",
    "openai.resources.chat.chat",  # these the SDK leaves to the first request
    "openai.resources.chat.completions.completions",
    "openai.resources.responses.responses",
    "anthropic",
    "pydantic_ai.models.anthropic",
    "pydantic_ai.providers.anthropic",
    "anthropic.resources.beta.messages.messages",
    "google.genai",
    "pydantic_ai.models.google",
    "pydantic_ai.providers.google",
)


def load(name: str) -> None:
    """Import a module, if it is installed and can be."""
    with contextlib.suppress(Exception):  # whoever needs it will be told in the worker
        importlib.import_module(name)


def load_prices() -> None:
    """Pydantic AI's table of prices: whoever makes a model needs it, and it takes long to build."""
    with contextlib.suppress(Exception):  # then the worker builds it
        importlib.import_module("genai_prices.data_snapshot").get_snapshot()


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """What is imported here stays. Looking for garbage in it, again and again, takes a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(0, *before[1:])
    during = gc.get_threshold()
    try:
        yield
    finally:
        gc.freeze()
        if gc.get_threshold() == during:  # not if the application has wishes of its own
            gc.set_threshold(*before)


def can_fork() -> bool:
    """Whether a forked child would be whole: this process has one thread, and its libraries allow it."""
    if sys.platform == "darwin":
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def share_memory() -> None:
    """Pages with what is loaded by now stay shared with forked children: no collection touches them."""
    gc.collect()
    gc.freeze()
