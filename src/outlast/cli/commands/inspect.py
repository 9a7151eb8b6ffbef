"""`outlast inspect` and `outlast explain`: reading a store."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.options import (
    AgentArgument,
    Json,
    Limit,
    NameArgument,
    OptionalAgent,
    OptionalName,
    Store,
    TurnArgument,
)

inspect = typer.Typer(
    no_args_is_help=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    help="Inspect a store, read-only.",
)


@inspect.callback()
def overview(context: typer.Context, store: Store = None, json: Json = False) -> None:
    """Inspect a store, read-only.

    Without a command, list the agents. It is safe while a host is running, and works without one.
    """
    if context.invoked_subcommand is None:
        agents(store=store, json=json)
    else:  # options before the command apply to it
        context.default_map = {context.invoked_subcommand: {"store": store, "json": json}}


@inspect.command()
def agents(
    store: Store = None,
    json: Json = False,
    after: Annotated[str, typer.Option(help="Continue after this address")] = "",
    limit: Limit = 100,
) -> None:
    """List all agents with their state."""
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.agents(store, json, after, limit))


@inspect.command()
def agent(
    agent: AgentArgument, name: NameArgument = None, store: Store = None, json: Json = False
) -> None:
    """Show one agent with everything it has."""
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.agent(store, json, agent, name))


@inspect.command()
def turns(
    agent: OptionalAgent = None,
    name: OptionalName = None,
    store: Store = None,
    json: Json = False,
    open: Annotated[bool, typer.Option("--open", help="Only turns that have not ended")] = False,
    limit: Limit = 50,
) -> None:
    """List turns, newest first."""
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.turns(store, json, agent, name, only_open=open, limit=limit))


@inspect.command()
def submissions(
    agent: OptionalAgent = None,
    name: OptionalName = None,
    store: Store = None,
    json: Json = False,
    limit: Limit = 50,
) -> None:
    """List submissions, newest first."""
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.turns(store, json, agent, name, only_submissions=True, limit=limit))


@inspect.command()
def incidents(
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


def _of_one(view: str, about: str, most: int = 100) -> None:
    """Declare a command for one agent."""

    def command(
        agent: AgentArgument,
        name: NameArgument = None,
        store: Store = None,
        json: Json = False,
        limit: Limit = most,
    ) -> None:
        from outlast.cli.output import run
        from outlast.cli.stores import show as showing

        run(getattr(showing, view)(store, json, agent, name, limit))

    inspect.command(view, help=about)(command)


_of_one("fibers", "List the fibers of an agent, newest first.")
_of_one("schedules", "List the schedules of an agent, the next one first.")
_of_one("ledger", "List the tool calls of an agent, newest first.")
_of_one("messages", "List the messages of an agent, newest first.", most=50)


@inspect.command()
def battery(
    battery: Annotated[
        str, typer.Argument(metavar="BATTERY", help="Its name, or its path: package.module:NAME")
    ],
    agent: AgentArgument,
    name: NameArgument = None,
    store: Store = None,
    json: Json = False,
    view: Annotated[str | None, typer.Option(help="Only the view with this title")] = None,
    row: Annotated[str | None, typer.Option(help="One row of the view, by its first value")] = None,
    limit: Limit = 100,
) -> None:
    """Show the tables of a battery for an agent."""
    from outlast.cli.output import run
    from outlast.cli.stores import show_battery

    run(show_battery.show(store, json, battery, agent, name, view, row, limit))


@inspect.command()
def sizes(
    agent: OptionalAgent = None, name: OptionalName = None, store: Store = None, json: Json = False
) -> None:
    """Show how much is stored, by table."""
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.sizes(store, json, agent, name))


@inspect.command()
def chunks(turn: TurnArgument, store: Store = None, json: Json = False) -> None:
    """Print the raw chunks of a turn, one per line.

    They are kept for ten minutes after its end.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.chunks(store, json, turn))


def explain(turn: TurnArgument, store: Store = None, json: Json = False) -> None:
    """Explain what happened in a turn.

    Shows its admission, steps, tool calls, interruptions, the decisions about them with reasons, and its end.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.explain(store, json, turn))
