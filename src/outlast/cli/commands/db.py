"""`outlast db`: measuring, shrinking and copying stores."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.options import Json, Store

db = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Measure, vacuum, back up or copy a store."
)


@db.command()
def size(store: Store = None, json: Json = False) -> None:
    """Show the size of a store, by table."""
    from outlast.cli.output import run
    from outlast.cli.stores import stores as storing

    run(storing.size(store, json))


@db.command()
def vacuum(store: Store = None, json: Json = False) -> None:
    """Free the space of deleted rows.

    No host may have a SQLite file open.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import stores as storing

    run(storing.vacuum(store, json))


@db.command()
def backup(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="The target: a file, or a folder (folder/ creates it)"),
    ],
    store: Store = None,
    json: Json = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file")] = False,
) -> None:
    """Back up a SQLite store to a file, even while a host is running.

    The backup is a consistent, checked snapshot, and appears completely or not at all.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import stores as storing

    run(storing.backup(store, file, force=force, json=json))


@db.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of a store")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The URL of an empty one")],
    live: Annotated[
        bool,
        typer.Option("--live", help="Copy the current contents even if a host has the store open"),
    ] = False,
    json: Json = False,
) -> None:
    """Copy a store, also from SQLite to PostgreSQL and back.

    Compares every row afterwards. If a row differs, it says so and the exit status is not 0.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import stores as storing

    run(storing.copy(source, target, live=live, json=json))
