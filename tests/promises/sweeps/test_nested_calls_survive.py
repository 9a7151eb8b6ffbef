"""Calls inside a call, killed at every commit: each is made once, and what came of it is what is returned."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from chat_rows import check_all_ended, check_answers, check_request, check_tree, stored

from outlast import Host, NotDone, Think, ToolCall, tool
from outlast.agent.agent import parts_of
from outlast.chat.answer.calls import current_calls
from outlast.core.errors import CallFailed, OutcomeUnknown
from outlast.store.operations import Query
from outlast.testing import Outcome, ScriptedModel, Step
from sweeps import crash_sweep

Mode = Literal["commits", "groups", "twice"]
AGENT = "Buyer/b"

payments: list[str] = []  # the world outside: the keys of what was paid,
bookings: list[str] = []  # of what was booked, which can be found out,
looks: list[str] = []  # and of what was only looked at
returned: list[tuple[str, str]] = []  # what calls gave to the code that made them


model = ScriptedModel(
    Step.text("I see to it.", delay=0.01) + Step.call("shop", {}, id="c"),
    Step.text("All is done.", delay=0.01),
)


class Buyer(Think):
    model = model

    @tool(effect="idempotent")
    async def shop(self, call: ToolCall) -> list[str]:
        """Look, pay twice side by side, book, and pay inside another call."""
        looked = await made(call, 0, "look")
        paid = await asyncio.gather(made(call, 1, "pay"), made(call, 2, "pay"))
        await asyncio.sleep(0.05)
        return [looked, *paid, await made(call, 3, "book"), await made(call, 4, "order")]

    @tool(effect="read")
    async def look(self, call: ToolCall) -> str:
        """Look at something."""
        looks.append(call.idempotency_key)
        return "look: yes"

    @tool(effect="once")
    async def pay(self, call: ToolCall) -> str:
        """Pay."""
        payments.append(call.idempotency_key)
        await asyncio.sleep(0.02)
        return "pay: yes"

    @tool(effect="once", reconcile="is_booked")
    async def book(self, call: ToolCall) -> str:
        """Book."""
        bookings.append(call.idempotency_key)
        await asyncio.sleep(0.02)
        return "book: yes"

    async def is_booked(self, call: ToolCall) -> Any:
        return "book: yes" if call.idempotency_key in bookings else NotDone()

    @tool(effect="idempotent")
    async def order(self, call: ToolCall) -> str:
        """Pay inside."""
        return f"order: {await made(call, 0, 'pay')}"

    async def begun(self) -> list[Any]:
        query = Query.same("SELECT id FROM calls WHERE agent = ? AND state = 'begun'")
        return list(await parts_of(self).activation.store.fetch(query, AGENT))


async def made(call: ToolCall, seq: int, name: str) -> str:
    """Call a tool, and note what came of it."""
    try:
        result = str(await current_calls().inside(call, seq, name, {}))
    except OutcomeUnknown:
        result = f"{name}: unknown"
    except CallFailed:
        result = f"{name}: no"
    returned.append((f"{call.id}/{seq}", result))
    return result


OUTSIDE: list[Any] = [payments, bookings, looks, returned, model.requests]


def forget() -> None:
    for each in OUTSIDE:
        each.clear()


async def work(host: Host) -> None:
    user = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Buy"}]}
    await host.get(Buyer, "b").submit_messages(user, idempotency_key="buy")
    await host.until_settled()


async def check(outcome: Outcome) -> None:
    host, deaths = outcome.host, len(outcome.deaths)
    await host.until_settled()
    rows = await stored(host, AGENT)
    check_all_ended(rows)
    check_tree(rows)
    check_answers(rows)
    for request in model.requests:
        check_request(request.messages)
    assert [entry.outcome for entry in rows.entries] == ["completed"]
    assert rows.path[-1].text == "I see to it.All is done."
    assert await host.get(Buyer, "b").begun() == [], "a call has no outcome"
    [part] = [p for p in rows.path[-1].message["parts"] if p["type"] == "tool-shop"]
    looked, first, second, booked, ordered = part["output"]
    assert looked == "look: yes"
    assert len(looks) <= 1 + deaths
    for done in (payments, bookings):
        assert len(set(done)) == len(done), "something happened twice"
    check_told(first, "1", deaths)
    check_told(second, "2", deaths)
    check_told(ordered.removeprefix("order: "), "4/0", deaths)
    assert booked == ("book: yes" if bookings else "book: no"), "it can be found out"
    check_repeated()
    if not deaths:
        assert (len(payments), len(bookings), len(looks)) == (3, 1, 1)


def check_told(result: str, seq: str, deaths: int) -> None:
    """What the code was told of a payment is what happened."""
    has_happened = any(key.endswith(f":c/{seq}") for key in payments)
    assert result in ("pay: yes", "pay: unknown")
    assert has_happened or result == "pay: unknown"
    assert deaths or result == "pay: yes"


def check_repeated() -> None:
    """What code was once told of a call that happens once, it is told again when it runs again."""
    told: dict[str, str] = {}
    for id, result in returned:
        assert told.setdefault(id, result) == result, f"{id} was {told[id]}, and is {result}"


@pytest.fixture
def store(engine: str, request: pytest.FixtureRequest) -> str | None:
    return str(request.getfixturevalue("postgres")) if engine == "postgresql" else None


@pytest.mark.invariant("I2", "I8", "I18")
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
@pytest.mark.parametrize("mode", ["commits", "groups", "twice"])
async def test_calls_inside_a_call(mode: Mode, engine: str, store: str | None) -> None:
    sample = None if mode == "commits" else 30 if engine == "sqlite" else 8
    report = await crash_sweep(
        agents=[Buyer],
        drive=work,
        check=check,
        reset=forget,
        outside=OUTSIDE,
        mode=mode,
        store=store,
        sample=sample,
    )
    assert report.commits >= 15
    assert report.deaths >= (sample or 2 * report.commits)
