"""`outlast inspect` and `outlast explain`: looking inside a store."""

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
    help="Look inside a store, read-only.",
)


@inspect.callback()
def overview(context: typer.Context, store: Store = None, json: Json = False) -> None:
    """Look inside a store, read-only.

    Without a command: the agents. It is safe beside a running host, and when none runs.
    """
    if context.invoked_subcommand is None:
        agents(store=store, json=json)
    else:  # what was said before the command counts for it
        context.default_map = {context.invoked_subcommand: {"store": store, "json": json}}


@inspect.command()
def agents(
    store: Store = None,
    json: Json = False,
    after: Annotated[str, typer.Option(help="Go on after this address")] = "",
    limit: Limit = 100,
) -> None:
    """All agents, and what they are doing."""
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.agents(store, json, after, limit))


@inspect.command()
def agent(
    agent: AgentArgument, name: NameArgument = None, store: Store = None, json: Json = False
) -> None:
    """One agent, with all that it has."""
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.agent(store, json, agent, name))


@inspect.command()
def turns(
    agent: OptionalAgent = None,
    name: OptionalName = None,
    store: Store = None,
    json: Json = False,
    open: Annotated[bool, typer.Option("--open", help="Only those that have not ended")] = False,
    limit: Limit = 50,
) -> None:
    """What agents were asked, newest first."""
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
    """What is to be answered later, newest first."""
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
        bool, typer.Option("--open", help="Only those that are being recovered now")
    ] = False,
    limit: Limit = 50,
) -> None:
    """Turns that were interrupted, oldest first: being recovered, recovered, or given up."""
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.incidents(store, json, agent, name, only_open=open, limit=limit))


def _of_one(view: str, about: str, most: int = 100) -> None:
    """A command about one agent."""

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


_of_one("fibers", "The fibers of an agent, newest first.")
_of_one("schedules", "The schedules of an agent, the next one first.")
_of_one("ledger", "The tool calls of an agent, newest first.")
_of_one("messages", "The messages of an agent, newest first.", most=50)


@inspect.command()
def battery(
    battery: Annotated[
        str, typer.Argument(metavar="BATTERY", help="Its name, or where it is: package.module:NAME")
    ],
    agent: AgentArgument,
    name: NameArgument = None,
    store: Store = None,
    json: Json = False,
    view: Annotated[str | None, typer.Option(help="Only the view with this title")] = None,
    row: Annotated[str | None, typer.Option(help="One row of it: its first value")] = None,
    limit: Limit = 100,
) -> None:
    """What a battery shows of an agent."""
    from outlast.cli.output import run
    from outlast.cli.stores import show_battery

    run(show_battery.show(store, json, battery, agent, name, view, row, limit))


@inspect.command()
def sizes(
    agent: OptionalAgent = None, name: OptionalName = None, store: Store = None, json: Json = False
) -> None:
    """How much is stored, table by table."""
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.sizes(store, json, agent, name))


@inspect.command()
def chunks(turn: TurnArgument, store: Store = None, json: Json = False) -> None:
    """The raw chunks of a turn, one a line.

    They are kept for ten minutes after its end.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.chunks(store, json, turn))


def explain(turn: TurnArgument, store: Store = None, json: Json = False) -> None:
    """Tell what happened in a turn.

    Its admission, steps, tool calls, what interrupted it, what was decided about that and why, and its end.
    """
    from outlast.cli.output import run
    from outlast.cli.stores import show as showing

    run(showing.explain(store, json, turn))
