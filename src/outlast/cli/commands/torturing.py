"""`outlast torture`."""

from __future__ import annotations

import typer


def torture(context: typer.Context) -> None:
    """Kill a chat server a thousand times, and account for everything (--help tells more)."""
    from outlast.testing.torture.__main__ import main

    raise typer.Exit(main(context.args))
