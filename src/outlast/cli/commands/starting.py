"""`outlast init` and `outlast doctor`: the first things."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlast.cli.options import Json, Store


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to; it may be there")],
    model: Annotated[
        str, typer.Option(help="The model of the agent")
    ] = "anthropic:claude-sonnet-4-5",
) -> None:
    """Start a project.

    An agent, a test that kills it at every commit, and a Dockerfile.
    """
    from outlast.cli.setup.init import start

    start(folder, model)


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            help="file.py, module:app, or a folder with agents (agents/ if there is one)"
        ),
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Say what works on this machine.

    And what to install for what does not; of your agents, which batteries they have, and their parts in
    order. The exit status is 1 if something is in the way.
    """
    from outlast.cli.setup.doctor import doctor as look

    raise typer.Exit(look(store, json, target))
