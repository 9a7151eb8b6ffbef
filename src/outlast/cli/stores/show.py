"""The output of `inspect` and `explain`."""

from __future__ import annotations

import sys
from typing import Any

from outlast.cli.output import ago, as_json, clock, console, day, short_id, show_table, size
from outlast.cli.stores.find import find_agent, maybe_agent
from outlast.core import json as encoding
from outlast.inspect import views
from outlast.inspect.hosted import is_hosted
from outlast.inspect.reader import reading
from outlast.inspect.timeline import Moment
from outlast.inspect.values import (
    AgentView,
    FiberView,
    IncidentView,
    ScheduleView,
    SizeView,
    TurnDetails,
    TurnView,
)
from outlast.inspect.words import duration, value
from outlast.store.catalogue import Reader

MARKS = {
    "accepted": ("●", ""),
    "waiting": ("◌", "yellow"),
    "claimed": ("▶", ""),
    "step": ("→", "cyan"),
    "said": ("“", ""),
    "called": ("⚙", "magenta"),
    "returned": ("←", "magenta"),
    "asked": ("?", "yellow"),
    "answered": ("!", "yellow"),
    "dropped": ("⌫", "red"),
    "interrupted": ("✖", "red"),
    "decided": ("◆", "yellow"),
    "continued": ("▶", "green"),
    "running": ("…", "yellow"),
    "left": ("✖", "red"),
    "cancelled": ("■", "red"),
    "settled": ("●", "green"),
}


# --- all agents, and one -------------------------------------------------------------------------


async def agents(url: str | None, json: bool, after: str, limit: int) -> None:
    async with reading(url) as reader:
        found = await views.agents(reader, after=after, limit=limit)
    if json:
        as_json(found)
        return
    show_table(
        ["agent", "name", "state", "last activity", "turns", "messages", "fibers", "schedules"],
        [_agent_row(each) for each in found],
        none="No agents in this store.",
        wide="name",
        drop=["schedules", "fibers", "messages", "turns"],
    )
    roots = [each for each in found if each.address.count("/") == 1]
    if len(roots) == limit:
        console().print(f"More: --after {roots[-1].address}", style="dim")


def _agent_row(each: AgentView) -> list[Any]:
    depth = each.address.count("/") // 2
    kind = "  " * depth + ("└ " if depth else "") + each.kind
    last = ago(each.last_activity_at)
    name = each.name if each.name else "''"
    return [kind, name, each.state, last, each.turns, each.messages, each.fibers, each.schedules]


async def agent(url: str | None, json: bool, kind: str, name: str | None) -> None:
    async with reading(url) as reader:
        address = await find_agent(reader, kind, name)
        found: dict[str, Any] = {
            "agent": await views.agent(reader, address),
            "turns": await views.turns(reader, address, limit=20),
            "incidents": await views.incidents(reader, address),
            "fibers": await views.fibers(reader, address, limit=20),
            "schedules": await views.schedules(reader, address, limit=20),
            "sizes": await views.sizes(reader, address),
        }
    if json:
        as_json(found)
        return
    about: AgentView = found["agent"]
    to = console()
    to.print(f"{about.address}", style="bold", markup=False)
    facts = f"{about.state}; last activity {ago(about.last_activity_at)}; {about.messages} messages"
    if about.strikes:
        facts += f"; {about.strikes} consecutive starts did not complete"
    to.print(facts, markup=False)
    if about.state == "stuck":
        to.print(f"outlast release '{about.address}' lets it start once more", markup=False)
    _show_turns(found["turns"], with_agent=False)
    if found["incidents"]:
        _show_incidents(found["incidents"])
    if found["fibers"]:
        _show_fibers(found["fibers"])
    if found["schedules"]:
        _show_schedules(found["schedules"])
    _show_sizes([each for each in found["sizes"] if each.rows])


# --- tables --------------------------------------------------------------------------------------


async def turns(
    url: str | None,
    json: bool,
    kind: str | None,
    name: str | None,
    *,
    only_open: bool = False,
    only_submissions: bool = False,
    limit: int = 50,
) -> None:
    async with reading(url) as reader:
        address = await maybe_agent(reader, kind, name)
        found = await views.turns(
            reader, address, only_open=only_open, only_submissions=only_submissions, limit=limit
        )
    if json:
        as_json(found)
    else:
        _show_turns(found, with_agent=address is None)


def _show_turns(found: list[TurnView], *, with_agent: bool) -> None:
    show_table(
        [
            "turn",
            *(["agent"] if with_agent else []),
            "outcome",
            "tries",
            "accepted",
            "took",
            "asked",
        ],
        [
            [
                short_id(each.id),
                *([each.agent] if with_agent else []),
                each.outcome or each.state,
                each.attempt,
                ago(each.accepted_at),
                _took(each),
                each.asked or each.kind,
            ]
            for each in found
        ],
        none="No such turns.",
        wide="asked",
        drop=["tries", "took", "accepted"],
    )


def _took(turn: TurnView) -> str:
    if turn.started_at is None or turn.ended_at is None:
        return "-"
    return duration(max(0, turn.ended_at - turn.started_at))


async def incidents(
    url: str | None,
    json: bool,
    kind: str | None,
    name: str | None,
    *,
    only_open: bool = False,
    limit: int = 50,
) -> None:
    async with reading(url) as reader:
        address = await maybe_agent(reader, kind, name)
        found = await views.interruptions(reader, address, limit=views.DECISIONS_READ)
    found = [each for each in found if each.state == "open" or not only_open][-limit:]
    if json:
        as_json(found)
    else:
        _show_incidents(found)


def _show_incidents(found: list[IncidentView]) -> None:
    show_table(
        ["turn", "agent", "state", "cause", "attempts", "when", "continued", "row", "given up for"],
        [
            [
                short_id(each.turn),
                each.agent,
                "given up" if each.state == "exhausted" else each.state,
                each.cause,
                each.attempts,
                ago(each.first_seen_at),
                None if each.continued_ms is None else f"after {duration(each.continued_ms)}",
                each.row,
                each.reason,
            ]
            for each in found
        ],
        none="No incidents: no turn was interrupted in the last thirty days.",
        wide="agent",
        drop=["row", "given up for", "attempts", "when"],
    )


async def fibers(url: str | None, json: bool, kind: str, name: str | None, limit: int) -> None:
    async with reading(url) as reader:
        found = await views.fibers(reader, await find_agent(reader, kind, name), limit=limit)
    if json:
        as_json(found)
    else:
        _show_fibers(found)


def _show_fibers(found: list[FiberView]) -> None:
    show_table(
        ["fiber", "name", "status", "created", "stashes", "tries", "snapshot"],
        [
            [
                short_id(each.id),
                each.name,
                each.status,
                ago(each.created_at),
                each.stashes,
                each.tries,
                each.error or value(each.snapshot),
            ]
            for each in found
        ],
        none="No fibers.",
        wide="snapshot",
        drop=["stashes", "tries", "created"],
    )


async def schedules(url: str | None, json: bool, kind: str, name: str | None, limit: int) -> None:
    async with reading(url) as reader:
        found = await views.schedules(reader, await find_agent(reader, kind, name), limit=limit)
    if json:
        as_json(found)
    else:
        _show_schedules(found)


def _show_schedules(found: list[ScheduleView]) -> None:
    def when(each: ScheduleView) -> str:
        if each.cron is not None:
            return f"{each.cron} ({each.timezone or 'UTC'})"
        return f"every {duration(each.interval)}" if each.interval else each.kind

    show_table(
        ["schedule", "callback", "when", "next", "running", "payload"],
        [
            [
                short_id(each.id),
                each.callback,
                when(each),
                ago(each.run_at),
                each.claimed_at is not None,
                value(each.payload),
            ]
            for each in found
        ],
        none="No schedules.",
        wide="payload",
        drop=["schedule", "running"],
    )


async def ledger(url: str | None, json: bool, kind: str, name: str | None, limit: int) -> None:
    async with reading(url) as reader:
        found = await views.ledger(reader, await find_agent(reader, kind, name), limit=limit)
    if json:
        as_json(found)
        return
    show_table(
        ["call", "tool", "effect", "state", "begun", "took", "turn", "input"],
        [
            [
                short_id(each.id),
                each.name,
                each.effect,
                each.state,
                ago(each.started_at),
                "-" if each.ended_at is None else duration(max(0, each.ended_at - each.started_at)),
                short_id(each.turn),
                value(each.input),
            ]
            for each in found
        ],
        none="No tool calls. They are kept for ten minutes after the end of their turn.",
        wide="input",
        drop=["call", "took", "turn"],
    )


async def messages(url: str | None, json: bool, kind: str, name: str | None, limit: int) -> None:
    async with reading(url) as reader:
        found = await views.messages(reader, await find_agent(reader, kind, name), limit=limit)
    if json:
        as_json(found)
        return
    show_table(
        ["message", "role", "status", "stored", "size", "text"],
        [
            [
                short_id(each.id),
                each.role,
                each.status,
                ago(each.created_at),
                size(each.size),
                each.text,
            ]
            for each in found
        ],
        none="No messages.",
        wide="text",
        drop=["size", "status", "message"],
    )


async def sizes(url: str | None, json: bool, kind: str | None, name: str | None) -> None:
    async with reading(url) as reader:
        found = await views.sizes(reader, await maybe_agent(reader, kind, name))
    if json:
        as_json(found)
    else:
        _show_sizes(found)


def _show_sizes(found: list[SizeView]) -> None:
    everything = SizeView("all", sum(each.rows for each in found), sum(e.bytes for e in found))
    show_table(
        ["table", "rows", "stored"],
        [[each.table, each.rows, size(each.bytes)] for each in (*found, everything)],
        none="Nothing is stored.",
    )


# --- one turn ------------------------------------------------------------------------------------


async def chunks(url: str | None, json: bool, turn: str) -> None:
    async with reading(url) as reader:
        address, id = await views.find_turn(reader, turn)
        found = await views.chunks(reader, address, id)
    if json:
        as_json(found)
        return
    for each in found:
        chunk = encoding.encode(each["chunk"])
        sys.stdout.write(f"{each['seq']:>6} {each['attempt']:>2} {chunk}\n")


async def explain(url: str | None, json: bool, turn: str) -> None:
    hosted = await is_hosted(url)
    async with reading(url) as reader:
        found = await _read_turn(reader, turn, hosted)
    if json:
        as_json(found)
    else:
        show_turn(found)


async def _read_turn(reader: Reader, turn: str, hosted: bool | None) -> TurnDetails:
    address, id = await views.find_turn(reader, turn)
    return await views.turn(reader, address, id, is_hosted=hosted)


def show_turn(found: TurnDetails) -> None:
    """Print a turn as a timeline: time, mark, and description."""
    from rich.table import Table
    from rich.text import Text

    to, turn = console(), found.turn
    to.print(Text.assemble((turn.id, "bold"), " of ", (turn.agent, "bold")))
    began = turn.accepted_at
    to.print(f"{day(began)}, {turn.outcome or turn.state}", style="dim")
    to.print()
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, style="dim", justify="right")
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for moment in found.moments:
        mark, style = MARKS[moment.kind]
        if moment.kind == "settled" and not moment.ok:
            style = "red"
        at = "" if moment.at is None else clock(moment.at)
        since = "" if moment.at is None else _since(moment.at - began)
        table.add_row(at, since, Text(mark, style=style), _words(moment))
    to.print(table)


def _since(milliseconds: int) -> str:
    return "" if milliseconds <= 0 else f"+{duration(milliseconds)}"


def _words(moment: Moment) -> Any:
    from rich.text import Text

    text = Text(moment.what, style="" if moment.ok else "red")
    if moment.row is not None:
        text.append(f" Row {moment.row} of the table: {moment.why}.", style="dim")
    elif moment.why:
        text.append(f" {moment.why}", style="dim")
    return text
