"""Slow imports, done once in the supervisor instead of in every worker."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator

AT_ONCE = (  # needed by every worker
    "outlast.server.uvicorn_server",
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
SOON = (  # often needed, and takes seconds; after the first worker started
    "outlast.store.postgres.engine",
    "anyio._backends._asyncio",
    "opentelemetry.propagate",
    "openai",
    "pydantic_ai.models.openai",
    "pydantic_ai.providers.openai",
    "openai.resources.chat.chat",  # the SDK imports these with its first request
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
    """Import a module, if it is installed and importable."""
    with contextlib.suppress(Exception):  # the worker reports it, if it needs the module
        importlib.import_module(name)


def load_prices() -> None:
    """Build Pydantic AI's price table: every model needs it, and it is slow."""
    with contextlib.suppress(Exception):  # the worker builds it then
        importlib.import_module("genai_prices.data_snapshot").get_snapshot()


@contextlib.contextmanager
def reduced_gc() -> Iterator[None]:
    """Collect garbage less often: during imports it finds nothing and takes a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(0, *before[1:])
    during = gc.get_threshold()
    try:
        yield
    finally:
        gc.freeze()
        if gc.get_threshold() == during:  # unless the application changed it
            gc.set_threshold(*before)


def can_fork() -> bool:
    """Return whether a forked child would work: this process has one thread, and its libraries allow it."""
    if sys.platform == "darwin":
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def share_memory() -> None:
    """Keep loaded memory pages shared with forked children: exclude them from garbage collection."""
    gc.collect()
    gc.freeze()
