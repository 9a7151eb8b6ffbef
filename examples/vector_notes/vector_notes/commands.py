"""`outlast notes`. Imported when it is run."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.options import AgentArgument, Json, NameArgument, Store
from outlast.cli.output import ago, as_json, console, fail, run, show_table
from outlast.cli.stores.act import ask_host
from outlast.cli.stores.find import find_agent
from outlast.inspect.reader import reading
from outlast.inspect.words import short
from vector_notes import tables
from vector_notes.part import Note

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List or forget notes of agents."
)


@app.command("list")
def list_(
    agent: AgentArgument, name: NameArgument = None, store: Store = None, json: Json = False
) -> None:
    """The notes of an agent, newest first; also of a store that no host has open."""
    run(_list(store, json, agent, name))


async def _list(store: str | None, json: bool, agent: str, name: str | None) -> None:
    async with reading(store) as reader:
        address = await find_agent(reader, agent, name)
        found = [Note(*row) for row in await reader.fetch(tables.NEWEST, address.text, 100)]
    if json:
        as_json(found)
        return
    rows = [[note.id, short(note.text, 80), ago(note.at)] for note in found]
    show_table(["note", "text", "kept"], rows, none="There are no notes.", wide="text")


@app.command()
def forget(
    note: Annotated[str, typer.Argument(metavar="NOTE", help="The id of a note")],
    agent: AgentArgument,
    name: NameArgument = None,
    store: Store = None,
) -> None:
    """Delete a note, through the host that runs the agent."""
    run(_forget(store, note, agent, name))


async def _forget(store: str | None, note: str, agent: str, name: str | None) -> None:
    async with reading(store) as reader:
        address = await find_agent(reader, agent, name)
    if not await ask_host(store, address, "forget_note", id=note):
        fail(f"{address} has no note {note!r}")
    console().print(f"{note} of {address} is forgotten.", markup=False)
