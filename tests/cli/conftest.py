"""What tests of the command line share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def forgotten_imports(tmp_path: Path) -> Iterator[None]:
    """What a test imports from its folder is forgotten again: a later one has files of the same name."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.startswith("agents_found") or file.startswith(str(tmp_path)):
            del sys.modules[name]
