"""Objects named in data as "package.module:NAME" and imported when needed."""

from __future__ import annotations

import importlib
import re
from typing import Any

_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def check_path(path: str | None, what: str) -> None:
    """Raise unless `path` is None or has the form 'package.module:NAME'."""
    if path is not None and not _PATH.fullmatch(path):
        raise ValueError(f"{what} must be 'package.module:NAME', got {path!r}")


def load(path: str) -> Any:
    """Import the object at a path.

    ```python
    from outlast.core.loading import load
    assert load("math:tau") > 6
    ```
    """
    check_path(path, "path")
    module, _, name = path.partition(":")
    found = importlib.import_module(module)
    try:
        return getattr(found, name)
    except AttributeError:
        raise LookupError(f"{module} has no {name!r}") from None
