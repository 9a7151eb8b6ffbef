"""`outlast search`. Imported when it runs."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from outlast.cli.options import Json, Store
from outlast.cli.output import DIM, ago, as_json, console, run
from outlast.cli.stores.find import find_agent
from outlast.inspect import searching
from outlast.inspect.reader import reading
from outlast.inspect.searching import Found, FoundMessage
from outlast.session.search.search import MAX_HITS

if TYPE_CHECKING:
    from rich.text import Text

MARKED = "bold yellow"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The session of agents: what the model sees, and what can be found again.",
)


@app.callback()
def session() -> None:
    """The session of agents: what the model sees, and what can be found again."""


@app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The words to find")],
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="CLASS/NAME", help="Only messages of this agent"),
    ] = None,
    store: Store = None,
    json: Json = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=MAX_HITS, help="The maximum number of messages")
    ] = 20,
) -> None:
    """Search the messages of agents in a store.

    All words must occur; "quoted words" one behind the other, pre* as a prefix, -word not at all. Without
    --agent it searches the agents with the newest messages first.
    """
    run(_search(store, json, query, agent, limit))


async def _search(
    url: str | None, is_json: bool, query: str, agent: str | None, limit: int
) -> None:
    async with reading(url) as reader:
        if agent is None:
            found = await searching.search_all(reader, query, limit=limit)
        else:
            address = await find_agent(reader, agent, None)
            found = Found(await searching.search(reader, address, query, limit=limit), 1, True)
    if is_json:
        as_json(found.messages)
    else:
        _show(found, has_agent=agent is not None)


def _show(found: Found, *, has_agent: bool) -> None:
    to = console()
    if not found.messages:
        to.print("No message matches.", style=DIM)
    for agent, messages in groupby(found.messages, lambda message: message.agent):
        if not has_agent:
            to.print(agent, style="bold", markup=False)
        for message in messages:
            about = f"{message.role}, {ago(message.created_at)}"
            to.print(about, style=DIM, markup=False)
            to.print(_marked(message), soft_wrap=not to.is_terminal)
            to.print()
    if not found.is_complete:
        agents = "1 agent was" if found.searched == 1 else f"{found.searched:,} agents were"
        to.print(
            f"There may be more: {agents} searched. Name one with --agent, or raise --limit.",
            style=DIM,
        )


def _marked(message: FoundMessage) -> Text:
    """Return the passage; what was found is highlighted on a terminal."""
    from rich.text import Text

    text = Text(message.text)
    for start, end in message.marks:
        text.stylize(MARKED, start, end)
    return text
