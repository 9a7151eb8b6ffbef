"""Calls with a key (`@tool(idempotency_key=…)`): made once, however often the model makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from conversation import agent_of, leftovers, rows, talker, until_running
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired
from tool_calls import Lives, call_parts, check_requests, ledger, outcomes, returns

import outlast
from outlast import Allow, Host, Think, ToolCall, tool
from outlast.testing import ScriptedModel, Step
from support import World, hosting, listen

pytestmark = pytest.mark.virtual_time

DAY = 24 * 3600
EFFECTS = ["read", "idempotent", "once"]

paid: list[tuple[str, int]] = []  # the world outside: to whom, and how much
acts: list[Callable[[], Any]] = []  # what the tool does next; the last one from then on


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    paid.clear()
    acts[:] = [lambda: "paid"]


def fail() -> None:
    raise ValueError("no money")


async def hang() -> None:
    await asyncio.sleep(1000)


def pay_step(amount: int = 5, to: str = "ann", **options: Any) -> Step:
    return Step.call("pay", {"to": to, "amount": amount}, **options)


def payer(model: Any, **options: Any) -> type[Any]:
    """An agent that pays each person once."""

    async def pay(self: Any, to: str, amount: int, call: ToolCall) -> Any:
        """Pay somebody."""
        paid.append((to, amount))
        act = acts.pop(0) if len(acts) > 1 else acts[0]
        done = act()
        return await done if asyncio.iscoroutine(done) else done

    key = options.pop("idempotency_key", lambda call: call.input["to"])
    marked = tool(idempotency_key=key, timeout=5, **options)(pay)
    return talker(model, pay=marked)


# --- one call after another ----------------------------------------------------------------------

FIRST: dict[str, Callable[[], Any]] = {
    "settled": lambda: "paid",
    "failed": fail,
    "unknown": hang,
    "dead": lambda: None,
}


def expected(effect: str, first: str, is_same: bool) -> str:
    """What comes of a second call with the key of a first one."""
    if first == "failed" or (first == "unknown" and effect != "once"):
        return "runs"  # it is over, and has not happened or may happen again
    if not is_same:
        return "conflict"
    if first == "settled":
        return "replayed"
    return "unknown" if effect == "once" else "runs"


@pytest.mark.invariant("I9")
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("amount", [5, 6])
def test_a_second_call_with_the_key_of_a_first_one(
    store_url: str, effect: str, first: str, amount: int
) -> None:
    what = expected(effect, first, amount == 5)
    events: list[str] = []
    Payer = payer(model := ScriptedModel(pay_step(), "Well."), effect=effect)
    lives = Lives(store_url, Payer)
    acts[:] = [lives.die if first == "dead" else FIRST[first], lambda: "paid again"]

    async def once(host: Host) -> None:
        await host.get(Payer, "a").save_messages("u1")

    async def again(host: Host) -> None:
        await host.until_settled()
        host.events.subscribe("message", lambda event: events.append(event.name))
        model.answers[:] = [pay_step(amount), "Well."]
        turn = await host.get(Payer, "a").save_messages("u2")
        (part,) = call_parts(turn.message)
        outcome = {"runs": "done", "replayed": "done", "conflict": "failed"}.get(what, what)
        assert outcomes(turn.message) == [outcome]
        output = {"runs": "paid again", "replayed": "paid"}.get(what)
        assert part.get("output") == output
        if what == "conflict":
            assert "had a different input" in part["errorText"]
        assert len(await ledger(host)) == (2 if what == "runs" else 1)

    assert lives.run(once).died == (first == "dead")
    lives.run(again)
    assert paid == [("ann", 5), *([("ann", amount)] if what == "runs" else [])]
    named = {"replayed": "replayed", "conflict": "conflict", "unknown": "pending"}.get(what)
    seen = [name for name in events if name.startswith("action:ledger:")]
    if first in ("settled", "dead"):
        assert seen == [f"action:ledger:{named or 'reclaimed'}"]
    check_requests(model)


@pytest.mark.invariant("I8", "I9")
async def test_a_result_is_given_again_in_steps_turns_and_lives_but_to_one_agent(
    world: World,
) -> None:
    Payer = payer(model := ScriptedModel(pay_step(), pay_step(), "Well."))
    acts[:] = [lambda: {"receipt": [1, None, "ä"]}]
    host = await world.host(Payer)
    a = host.get(Payer, "a")
    turns = [await a.save_messages("u1"), await a.save_messages("u2")]
    await host.get(Payer, "b").save_messages("u1")
    await world.stop()
    assert paid == [("ann", 5)] * 2
    host = await world.next_life()
    turns.append(await host.get(Payer, "a").save_messages("u3"))
    assert sorted(await rows(host, "calls", "agent, key, state")) == [
        ("Talker/a", "pay:ann", "done"),
        ("Talker/b", "pay:ann", "done"),
    ]
    await world.stop()
    for turn in turns:
        outputs = [part["output"] for part in call_parts(turn.message)]
        assert outputs == [{"receipt": [1, None, "ä"]}] * 2
    assert paid == [("ann", 5)] * 2
    assert {str(part.content) for part in returns(model)} == {"{'receipt': [1, None, 'ä']}"}
    check_requests(model)


async def test_nothing_is_a_result_too(world: World) -> None:
    Payer = payer(ScriptedModel(pay_step(), pay_step(), "Well."))
    acts[:] = [lambda: None]
    host = await world.host(Payer)
    turn = await host.get(Payer, "a").save_messages("u1")
    assert [part["output"] for part in call_parts(turn.message)] == [None, None]
    await world.stop()
    assert paid == [("ann", 5)]


@pytest.mark.invariant("I9")
def test_what_reconcile_found_out_after_a_death_is_given_again(store_url: str) -> None:
    Payer = payer(model := ScriptedModel(pay_step(), "Well."), reconcile=lambda call: "paid in May")
    lives = Lives(store_url, Payer)
    acts[:] = [lives.die]

    async def again(host: Host) -> None:
        await host.until_settled()
        a = host.get(Payer, "a")
        turn = await a.save_messages("u2")
        found = [(await a.get_messages())[1], turn.message]
        outputs = [part.get("output") for message in found for part in call_parts(message)]
        assert outputs == ["paid in May"] * 2

    assert lives.run(lambda host: host.get(Payer, "a").save_messages("u1")).died
    lives.run(again)
    assert paid == [("ann", 5)]
    check_requests(model)


@pytest.mark.invariant("I9")
async def test_a_call_that_nobody_knows_about_runs_again_once_its_tool_is_declared_safe(
    store_url: str,
) -> None:
    """As after a deploy."""
    acts[:] = [hang, lambda: "paid"]
    for life, effect in enumerate(["once", "once", "idempotent"], 1):
        Payer = payer(ScriptedModel(pay_step(), "Well."), effect=effect)
        async with hosting(Payer, url=store_url, life=str(life)) as host:
            turn = await host.get(Payer, "a").save_messages("u")
            assert outcomes(turn.message) == ["done" if effect == "idempotent" else "unknown"]
    assert len(paid) == 2


@pytest.mark.parametrize("days", [29, 31])
@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_key_is_kept_for_thirty_days(world: World, days: int, is_busy: bool) -> None:
    """Whether the agent was asked anything in between, or not."""
    Payer = payer(model := ScriptedModel(pay_step(), "Well."))
    host = await world.host(Payer)
    a = host.get(Payer, "a")
    await a.save_messages("u1")
    for day in range(days):
        await asyncio.sleep(DAY)
        if is_busy and day % 10 == 0:
            model.answers[:] = ["Hello."]
            await a.save_messages("u2")
    await asyncio.sleep(3600)  # enough for whoever clears up
    model.answers[:] = [pay_step(), "Well."]
    await a.save_messages("u3")
    await world.stop()
    assert len(paid) == (1 if days < 30 else 2)


# --- at the same time ----------------------------------------------------------------------------


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("effect", EFFECTS)
async def test_identical_calls_at_the_same_time_run_once(world: World, effect: str) -> None:
    other_order = Step.call("pay", '{"amount": 5, "to": "ann"}')
    Payer = payer(ScriptedModel(pay_step() + pay_step() + other_order, "Well."), effect=effect)
    acts[:] = [lambda: asyncio.sleep(3, "paid")]
    host = await world.host(Payer)
    replayed = listen(host, "action:ledger:replayed")
    turn = await host.get(Payer, "a").save_messages("u1")
    assert [part.get("output") for part in call_parts(turn.message)] == ["paid"] * 3
    assert len(replayed) == 2
    assert await rows(host, "calls", "key, state") == [("pay:ann", "done")]
    await host.until_settled()
    assert leftovers(agent_of(host, Payer)) == {}
    await world.stop()
    assert paid == [("ann", 5)]


@pytest.mark.invariant("I9", "I10")
async def test_a_call_with_another_input_at_the_same_time_is_refused(world: World) -> None:
    Payer = payer(ScriptedModel(pay_step() + pay_step(6) + pay_step(to="bob"), "Well."))
    acts[:] = [lambda: asyncio.sleep(3, "paid")]
    host = await world.host(Payer)
    turn = await host.get(Payer, "a").save_messages("u1")
    assert outcomes(turn.message) == ["done", "failed", "done"]
    await world.stop()
    assert sorted(paid) == [("ann", 5), ("bob", 5)]


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("effect", EFFECTS)
async def test_when_the_first_of_them_fails_the_next_one_runs(world: World, effect: str) -> None:
    Payer = payer(ScriptedModel(pay_step() + pay_step() + pay_step(), "Well."), effect=effect)
    acts[:] = [fail, lambda: "paid"]
    host = await world.host(Payer)
    turn = await host.get(Payer, "a").save_messages("u1")
    assert outcomes(turn.message) == ["failed", "done", "done"]
    await world.stop()
    assert len(paid) == 2


@pytest.mark.invariant("I10")
async def test_when_nobody_knows_about_the_first_of_them_the_others_do_not_run(
    world: World,
) -> None:
    Payer = payer(ScriptedModel(pay_step() + pay_step() + pay_step(), "Well."))
    acts[:] = [hang, lambda: "paid"]
    host = await world.host(Payer)
    turn = await host.get(Payer, "a").save_messages("u1")
    assert outcomes(turn.message) == ["unknown"] * 3
    await world.stop()
    assert paid == [("ann", 5)]


@pytest.mark.invariant("I10")
async def test_a_call_that_comes_while_the_first_ones_result_is_being_stored_gets_it(
    world: World,
) -> None:
    class Payer(Think):
        model = ScriptedModel(pay_step(id="c1") + pay_step(id="c2"), "Well.")

        async def before_turn(self, context: Any) -> None:
            self.first = asyncio.get_running_loop().create_future()

        async def key(self, call: ToolCall) -> str:
            if call.id == "c2":
                await self.first
            return "k"

        async def after_tool_call(self, context: Any) -> None:
            if context.tool_call_id == "c1":
                self.first.set_result(None)

        @tool(idempotency_key="key")
        async def pay(self, to: str, amount: int) -> str:
            paid.append((to, amount))
            return "paid"

    host = await world.host(Payer)
    turn = await host.get(Payer, "a").save_messages("u1")
    assert outcomes(turn.message) == ["done", "done"]
    await world.stop()
    assert paid == [("ann", 5)]


@pytest.mark.invariant("D12", "D14")
async def test_a_stop_reaches_those_that_wait_for_the_first_one(world: World) -> None:
    Payer = payer(model := ScriptedModel(pay_step() + pay_step() + pay_step(), "Well."))
    acts[:] = [hang]
    host = await world.host(Payer)
    a = host.get(Payer, "a")
    asked = asyncio.create_task(a.save_messages("u1"))
    running = await until_running(host, Payer)
    await asyncio.sleep(1)
    await a.cancel_chat(running.request_id)
    async with asyncio.timeout(1):
        turn = await asked
    assert (turn.status, outcomes(turn.message)) == ("aborted", ["unknown"] * 3)
    model.answers[:] = ["Next."]
    assert (await a.save_messages("u2")).status == "completed"
    await world.stop()
    assert paid == [("ann", 5)]
    check_requests(model)


# --- the key itself ------------------------------------------------------------------------------


def named(self: Any, call: ToolCall) -> str:
    return f"{self.name} {call.input['to']}"


async def named_later(self: Any, call: ToolCall) -> str:
    return named(self, call)


async def of_call(call: ToolCall) -> str:
    return f"a {call.input['to']}"


@pytest.mark.parametrize("key", ["by_name", named, named_later, of_call])
async def test_a_key_is_named_by_a_function_or_a_method(sqlite_world: World, key: Any) -> None:
    Payer = payer(ScriptedModel(pay_step(), pay_step(6), "Well."), idempotency_key=key)
    Payer.by_name = named_later
    host = await sqlite_world.host(Payer)
    await host.get(Payer, "a").save_messages("u1")
    assert await rows(host, "calls", "key") == [("pay:a ann",)]
    await sqlite_world.stop()
    assert paid == [("ann", 5)]


@pytest.mark.parametrize("key", [None, "", 5, ["k"], KeyError("no key")])
async def test_a_call_whose_key_is_no_text_does_not_run(
    sqlite_world: World, key: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def name(call: ToolCall) -> Any:
        if isinstance(key, Exception):
            raise key
        return key

    Payer = payer(ScriptedModel(pay_step(), "Well."), idempotency_key=name)
    host = await sqlite_world.host(Payer)
    turn = await host.get(Payer, "a").save_messages("u1")
    (part,) = call_parts(turn.message)
    assert part["errorText"].startswith("The tool failed. (error_")
    words = (
        "no key" if isinstance(key, Exception) else "idempotency_key must return a non-empty str"
    )
    assert words in caplog.text
    assert await ledger(host) == []
    await sqlite_world.stop()
    assert paid == []


@pytest.mark.invariant("D12", "D14")
async def test_a_turn_can_be_stopped_while_a_key_is_being_named(world: World) -> None:
    async def never(call: ToolCall) -> str:
        await asyncio.sleep(1000)
        return "k"

    Payer = payer(ScriptedModel(pay_step(), "Well."), idempotency_key=never)
    host = await world.host(Payer)
    a = host.get(Payer, "a")
    asked = asyncio.create_task(a.save_messages("u1"))
    running = await until_running(host, Payer)
    await asyncio.sleep(1)
    await a.cancel_chat(running.request_id)
    async with asyncio.timeout(1):
        turn = await asked
    assert (turn.status, outcomes(turn.message)) == ("aborted", ["failed"])
    await world.stop()
    assert paid == []


async def test_a_key_names_the_input_that_before_tool_call_has_changed(sqlite_world: World) -> None:
    Payer = payer(ScriptedModel(pay_step(), "Well."))
    Payer.before_tool_call = lambda self, context: Allow(input={**context.input, "to": "eve"})
    host = await sqlite_world.host(Payer)
    await host.get(Payer, "a").save_messages("u1")
    assert await rows(host, "calls", "key") == [("pay:eve",)]
    await sqlite_world.stop()
    assert paid == [("eve", 5)]


@pytest.mark.invariant("I13")
@pytest.mark.parametrize("has_key", [True, False])
async def test_a_call_that_asks_for_approval_by_itself_has_one_key(
    world: World, has_key: bool
) -> None:
    keys: list[str] = []

    async def pay(to: str, amount: int, call: ToolCall, idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if not call.approved:
            raise ApprovalRequired
        return "paid"

    marked = tool(idempotency_key=lambda call: "k")(pay) if has_key else tool(pay)
    Payer = talker(model := ScriptedModel(pay_step(id="c1"), "Well."), get_tools=lambda _: [marked])
    host = await world.host(Payer)
    a = host.get(Payer, "a")
    turn = await a.save_messages("u1")
    assert outcomes(turn.message) == ["open"]
    assert await a.add_tool_approval("c1", True)
    async with asyncio.timeout(60):
        await host.until_settled()
    message = (await a.get_messages())[-1]
    assert (outcomes(message), message.text) == (["done"], "Well.")
    await world.stop()
    assert keys == ["pay:k" if has_key else f"{turn.message.id}:c1"] * 2
    check_requests(model)


async def test_each_call_has_a_key_of_its_own(world: World) -> None:
    keys: list[str] = []

    async def act(idempotency_key: str) -> None:
        keys.append(idempotency_key)

    Agent = talker(
        ScriptedModel(Step.calls("act") + Step.calls("act"), Step.calls("act"), "Done."),
        get_tools=lambda _: [act],
    )
    host = await world.host(Agent)
    for name in ("a", "b"):
        await host.get(Agent, name).save_messages("u1")
        await host.get(Agent, name).save_messages("u2")
    await world.stop()
    assert len(keys) == len(set(keys)) == 12


# --- what the model does not see -----------------------------------------------------------------


async def first(call: ToolCall, city: str) -> str:
    return f"{call.id} {city}"


async def middle(city: str, call: ToolCall, days: int = 1) -> str:
    return f"{call.id} {city}"


async def only_by_name(city: str, *, call: ToolCall) -> str:
    return f"{call.id} {city}"


async def only_by_place(call: ToolCall, /, city: str) -> str:
    return f"{call.id} {city}"


async def perhaps(city: str, call: ToolCall | None = None) -> str:
    return f"{call and call.id} {city}"


async def qualified(city: str, call: outlast.ToolCall) -> str:
    return f"{call.id} {city}"


async def after_context(context: RunContext[Any], call: ToolCall, city: str) -> str:
    return f"{context.tool_call_id} {city}"


async def before_context(call: ToolCall, context: RunContext[Any], city: str) -> str:
    return f"{context.tool_call_id} {city}"


async def before_many(call: ToolCall, *city: str) -> str:
    return f"{call.id} {''.join(city)}"


async def with_key(idempotency_key: str, city: str, call: ToolCall) -> str:
    assert idempotency_key == call.idempotency_key
    return f"{idempotency_key.partition(':')[2]} {city}"


def plain(city: str, call: ToolCall) -> str:
    return f"{call.id} {city}"


SHAPES = [
    *(first, middle, only_by_name, only_by_place, perhaps, qualified),
    *(after_context, before_context, before_many, with_key, plain),
]


@pytest.mark.parametrize("is_resolved", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
async def test_a_call_is_filled_in_wherever_it_stands_and_not_shown(
    sqlite_world: World, shape: Any, is_resolved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Annotations are texts in this file, or what they stand for."""
    vars(shape).clear()  # a schema that was made before
    if is_resolved:
        monkeypatch.setattr(shape, "__annotations__", get_type_hints(shape))
    city = ["Oslo"] if shape is before_many else "Oslo"
    model = ScriptedModel(Step.call(shape.__name__, {"city": city}, id="c1"), "Done.")
    Agent = talker(model, get_tools=lambda _: [shape])
    host = await sqlite_world.host(Agent)
    turn = await host.get(Agent, "a").save_messages("u1")
    await sqlite_world.stop()
    assert [part.get("output") for part in call_parts(turn.message)] == ["c1 Oslo"]
    (definition,) = model.requests[0].parameters.function_tools
    assert set(definition.parameters_json_schema["properties"]) - {"days"} == {"city"}
