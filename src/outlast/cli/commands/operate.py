"""`outlast incidents`, `cancel` and `release`: acting on turns and agents in trouble."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.options import (
    AgentArgument,
    Direct,
    Json,
    Limit,
    NameArgument,
    OptionalAgent,
    OptionalName,
    Store,
    TurnArgument,
)

incidents = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, seal or retry interrupted turns.",
)


@incidents.command("list")
def list_(
    agent: OptionalAgent = None,
    name: OptionalName = None,
    store: Store = None,
    json: Json = False,
    open: Annotated[
        bool, typer.Option("--open", help="Only turns that are being recovered now")
    ] = False,
    limit: Limit = 50,
) -> None:
    """List interrupted turns, oldest first: recovering, recovered, or given up."""
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.incidents(store, json, agent, name, only_open=open, limit=limit))


@incidents.command()
def seal(
    turn: TurnArgument, store: Store = None, json: Json = False, direct: Direct = False
) -> None:
    """End an interrupted turn, keeping its partial answer."""
    from outlast.cli.output import run
    from outlast.cli.stores import act as acting

    run(acting.seal(store, json, direct, turn))


@incidents.command()
def retry(
    turn: TurnArgument, store: Store = None, json: Json = False, direct: Direct = False
) -> None:
    """Replace the answer of a turn with a new one.

    Ctrl-C stops waiting for it, but does not cancel it.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import act as acting

    run(acting.retry(store, json, direct, turn))


def cancel(
    turn: TurnArgument, store: Store = None, json: Json = False, direct: Direct = False
) -> None:
    """Cancel a turn that is running or waiting.

    Its partial answer is kept.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import act as acting

    run(acting.cancel(store, json, direct, turn))


def release(
    agent: AgentArgument,
    name: NameArgument = None,
    store: Store = None,
    json: Json = False,
    direct: Direct = False,
) -> None:
    """Unblock an agent that crashed at every start.

    It resumes its turns once more.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import act as acting

    run(acting.release(store, json, direct, agent, name))
