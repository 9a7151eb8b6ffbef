"""`outlast torture`."""

from __future__ import annotations

import os
import sys

import typer


def torture(context: typer.Context) -> None:
    """Kill a chat server a thousand times and check every answer (see --help)."""
    module = "outlast.testing.torture"
    os.execv(sys.executable, [sys.executable, "-m", module, *context.args])
