"""`outlast init` and `outlast doctor`: starting a project, and checking the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlast.cli.options import Json, Store


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder to write to; it may exist")
    ],
    model: Annotated[
        str, typer.Option(help="The model of the agent")
    ] = "anthropic:claude-sonnet-5",
) -> None:
    """Start a project.

    Writes an agent, a test that crashes it at every commit, and a Dockerfile.
    """
    from outlast.cli.setup.init import start

    start(folder, model)


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            help="file.py, module:app, or a folder with agents (default: agents/ if it exists)"
        ),
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Check what works on this machine.

    Says what to install for the rest, and lists the batteries of your agents and their parts in order.
    The exit status is 1 if there is a problem.
    """
    from outlast.cli.setup.doctor import doctor as look

    raise typer.Exit(look(store, json, target))
