"""`outlast torture`."""

from __future__ import annotations

import os
import sys

import typer


def torture(context: typer.Context) -> None:
    """Kill a chat server a thousand times, and account for everything (--help tells more)."""
    module = "outlast.testing.torture"
    os.execv(sys.executable, [sys.executable, "-m", module, *context.args])
