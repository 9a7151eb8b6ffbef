"""`outlast db`: stores as a whole."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.options import Json, Store

db = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Measure, vacuum, back up or copy a store."
)


@db.command()
def size(store: Store = None, json: Json = False) -> None:
    """How large it is, table by table."""
    from outlast.cli.output import run
    from outlast.cli.stores import stores as storing

    run(storing.size(store, json))


@db.command()
def vacuum(store: Store = None, json: Json = False) -> None:
    """Give back the space of what was deleted.

    A SQLite file must not be open in a host.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import stores as storing

    run(storing.vacuum(store, json))


@db.command()
def backup(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Where to: a file, or a folder (folder/ makes it)")
    ],
    store: Store = None,
    json: Json = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there")] = False,
) -> None:
    """Copy a SQLite store into a file, beside its host.

    What is copied is one moment of it, checked, and there as a whole or not at all.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import stores as storing

    run(storing.backup(store, file, force=force, json=json))


@db.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of a store")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The URL of an empty one")],
    live: Annotated[
        bool, typer.Option("--live", help="Copy what there is now, although a host has it open")
    ] = False,
    json: Json = False,
) -> None:
    """Copy a store, also from SQLite to PostgreSQL and back.

    Every row is compared afterwards. If anything differs, it is said, and the exit status is not 0.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import stores as storing

    run(storing.copy(source, target, live=live, json=json))
