"""Imports that take long, done once in the supervisor instead of in every worker."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

AT_ONCE = (  # what every worker needs
    "outlast.server.serving",
    "outlast.chat.think",
    "outlast.store.sqlite",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "pydantic_ai",
    "pydantic_ai.models",
    "encodings.idna",
)
SOON = (  # what it may need, and takes seconds; not before the first worker has started
    "outlast.store.postgres",
    "openai",
    "pydantic_ai.models.openai",
    "anthropic",
    "pydantic_ai.models.anthropic",
    "google.genai",
    "pydantic_ai.models.google",
)


def load(name: str) -> None:
    """Import a module, if it is installed and can be."""
    with contextlib.suppress(Exception):  # whoever needs it will be told in the worker
        importlib.import_module(name)


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
