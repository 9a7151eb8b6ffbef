"""What is known of a call whatever happens to it, and what is told of it: only a "once" call is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from conversation import inbox, said, talker, until, until_running
from pydantic_ai import Tool
from pydantic_ai.toolsets import FunctionToolset
from tool_calls import Lives, call_parts, check_requests, ledger, outcome, outcomes, returns

from outlast import Host, Think, ToolCall, ToolCallResultContext, tool
from outlast.store.base import StoreOptions
from outlast.store.url import open_store
from outlast.testing import CountingIds, ScriptedModel, Step, VirtualClock, VirtualLoop
from support import World, listen

pytestmark = pytest.mark.virtual_time

EFFECTS = ["read", "idempotent", "once"]
every_effect = pytest.mark.parametrize("effect", EFFECTS)

sent: list[str] = []  # the world outside
heard: list[ToolCallResultContext] = []  # what after_tool_call was told


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    sent.clear()
    heard.clear()


def clerk(effect: Any, act: Callable[[], Awaitable[Any]], model: Any, **options: Any) -> type[Any]:
    """An agent whose one tool has this effect, and does this."""

    async def send(self: Any, to: str, call: ToolCall) -> Any:
        """Send a mail."""
        sent.append(to)
        return await act()

    async def after_tool_call(self: Any, context: ToolCallResultContext) -> None:
        heard.append(context)

    marked = tool(effect=effect, **options)(send)
    return talker(model, send=marked, after_tool_call=after_tool_call)


def asking(*then: Any) -> ScriptedModel:
    """A model that sends a mail, and then says so."""
    return ScriptedModel(
        Step.text("I send it. ") + Step.calls("send", to="ann"), *then or ["Sent."]
    )


async def hang() -> None:
    await asyncio.sleep(1000)


async def hang_on() -> str:
    """Whoever tells it to stop."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 1000
    while loop.time() < end:
        try:
            await asyncio.sleep(end - loop.time())
        except asyncio.CancelledError:
            continue
    return "late"


async def give() -> str:
    return "sent"


async def give_nonsense() -> Any:
    return object()


async def fail() -> None:
    raise ValueError("the disk is full")


async def give_up() -> None:
    raise asyncio.CancelledError


# --- in one life ---------------------------------------------------------------------------------

HAPPENINGS: dict[str, tuple[Callable[[], Awaitable[Any]], bool, str]] = {
    "it returns": (give, False, ""),
    "it raises": (fail, False, "The tool failed. (error_"),
    "it takes too long": (hang, False, "took too long"),
    "it takes too long and does not stop": (hang_on, False, "took too long"),
    "the turn is stopped": (hang, True, "turn was stopped"),
    "the turn is stopped and it goes on": (hang_on, True, "turn was stopped"),
    "its result cannot be stored": (give_nonsense, False, "cannot be stored"),
    "it cancels itself": (give_up, False, "was cancelled"),
}


@pytest.mark.invariant("I1", "I2", "I8", "D12")
@every_effect
@pytest.mark.parametrize("what", HAPPENINGS)
async def test_what_is_known_of_a_call_is_told_to_everybody(
    world: World, effect: str, what: str
) -> None:
    act, is_stopped, words = HAPPENINGS[what]
    known = {"it returns": "done", "it raises": "failed"}
    expected = known.get(what, "unknown" if effect == "once" else "failed")
    Clerk = clerk(effect, act, model := asking(), timeout=None if is_stopped else 5)
    host = await world.host(Clerk)
    a = host.get(Clerk, "a")
    finished = listen(host, "tool:finish")
    asked = asyncio.create_task(a.save_messages("u1"))
    if is_stopped:
        running = await until_running(host, Clerk)
        await until(lambda: sent)
        await a.cancel_chat(running.request_id, "enough")
    async with asyncio.timeout(10):
        turn = await asked
    assert turn.status == ("aborted" if is_stopped else "completed")
    (part,) = call_parts(turn.message)
    assert outcome(part) == expected
    assert part["input"] == {"to": "ann"}
    assert await ledger(host, "name, effect, state") == [("send", effect, expected)]
    (context,) = heard
    assert (context.success, context.unknown) == (expected == "done", expected == "unknown")
    assert context.output == part.get("output")
    assert str(context.error) == ("the disk is full" if act is fail else str(part.get("errorText")))
    assert [event.outcome for event in finished] == [expected]
    if expected != "done":
        assert words in part["errorText"]
        assert ("is unknown" in part["errorText"]) == (expected == "unknown")
    await a.save_messages("u2")
    told = returns(model, -2)[0]  # in the step after it, or in the next turn
    assert told.outcome == ("success" if expected == "done" else "failed")
    assert told.content == (part["output"] if expected == "done" else part["errorText"])
    await world.stop()
    sent.remove("ann")  # of the second turn
    assert sent == ["ann"]
    host = await world.next_life()
    await host.until_settled()
    assert call_parts((await host.get(Clerk, "a").get_messages())[1]) == [part]
    await world.stop()
    assert sent == ["ann"]
    check_requests(model)


@pytest.mark.invariant("I8")
@pytest.mark.parametrize("whose", ["ours", "the tool's", "the toolset's", "that of one inside"])
async def test_whoever_limits_the_time_of_a_once_tool_its_outcome_is_unknown(
    world: World, whose: str
) -> None:
    async def slow() -> None:
        await hang()

    limited: dict[str, Any] = {
        "ours": tool(timeout=5)(slow),
        "the tool's": Tool(slow, timeout=5),
        "the toolset's": FunctionToolset([slow], timeout=5),
        "that of one inside": [fail, FunctionToolset([slow], timeout=5).renamed({"slow": "slow"})],
    }
    Clerk = talker(ScriptedModel.calls("slow").then("Well."), get_tools=lambda _: limited[whose])
    host = await world.host(Clerk)
    turn = await host.get(Clerk, "a").save_messages("u1")
    (part,) = call_parts(turn.message)
    assert outcome(part) == "unknown"
    assert "took too long" in part["errorText"]
    assert await ledger(host) == [("slow", "unknown")]


@pytest.mark.invariant("D9", "D12")
@pytest.mark.parametrize(
    "hook",
    [
        *("before_turn", "before_step", "before_tool_call", "after_tool_call", "on_step_finish"),
        "the tool",
    ],
)
async def test_a_turn_that_is_stopped_from_inside_ends_as_one_that_was_stopped(
    world: World, hook: str
) -> None:
    async def stop(self: Any, context: Any) -> None:
        await self.cancel_chat(context.request_id, "enough")

    async def send(self: Any, to: str, call: ToolCall) -> str:
        """Send a mail."""
        if hook == "the tool":
            await stop(self, call)
        return "sent"

    Clerk = talker(model := asking(), send=tool(send), **{hook: stop})
    host = await world.host(Clerk)
    a = host.get(Clerk, "a")
    await a.submit_messages("u1")
    await host.until_settled()
    assert await inbox(host, "outcome, error") == [("aborted", "enough")]
    for message in (await a.get_messages())[1:]:
        expected = "failed" if hook == "before_tool_call" else "done"
        assert outcomes(message) == [expected]
    setattr(Clerk, hook, getattr(Think, hook, None))
    model.answers[:] = ["Next."]
    assert (await a.save_messages("u2")).status == "completed"
    await world.stop()
    check_requests(model)


# --- across lives --------------------------------------------------------------------------------


def check_interrupted(message: Any, effect: str, words: str) -> None:
    (part,) = call_parts(message)
    assert outcome(part) == ("unknown" if effect == "once" else "failed")
    assert ("is unknown" in part["errorText"]) == (effect == "once")
    assert words in part["errorText"]


async def check_next_life(host: Host, Clerk: type[Any], effect: str, model: Any) -> None:
    """What a call that was interrupted leaves behind, and that the conversation goes on."""
    await host.until_settled()
    a = host.get(Clerk, "a")
    state = "unknown" if effect == "once" else "failed"
    assert await ledger(host, "name, effect, state") == [("send", effect, state)]
    assert await inbox(host) == [("ended", "interrupted")]
    check_interrupted((await a.get_messages())[1], effect, "process ended")
    assert sent == ["ann"]
    model.answers[:] = ["Well."]
    assert (await a.save_messages("u2")).status == "completed"
    (told,) = returns(model)
    assert told.outcome == "failed"
    assert told.content == call_parts((await a.get_messages())[1])[0]["errorText"]
    assert sent == ["ann"]
    check_requests(model)


@pytest.mark.invariant("I1", "I2", "I8")
@every_effect
def test_a_call_whose_process_dies_is_not_made_again(store_url: str, effect: str) -> None:
    async def die() -> None:
        lives.die()

    Clerk = clerk(effect, die, model := asking())
    lives = Lives(store_url, Clerk)

    async def ask(host: Host) -> None:
        await host.get(Clerk, "a").save_messages("u1")

    assert lives.run(ask).died
    assert sent == ["ann"]
    lives.run(lambda host: check_next_life(host, Clerk, effect, model))


@pytest.mark.invariant("I1", "I2", "I8")
@pytest.mark.parametrize("act", [hang, hang_on])
@every_effect
async def test_a_call_whose_host_stops_is_not_made_again(
    world: World, effect: str, act: Any
) -> None:
    Clerk = clerk(effect, act, model := asking())
    host = await world.host(Clerk, shutdown_timeout=1)
    await host.get(Clerk, "a").submit_messages("u1")
    await until(lambda: sent)
    stopped = asyncio.get_running_loop().time()
    await world.stop()
    assert asyncio.get_running_loop().time() - stopped < 10, "no tool holds up a host for ever"
    host = await world.next_life()
    await check_next_life(host, Clerk, effect, model)


async def test_a_host_that_stops_waits_for_a_call_that_ends_in_time(world: World) -> None:
    async def act() -> str:
        await asyncio.sleep(3)
        return "sent"

    Clerk = clerk("once", act, asking())
    host = await world.host(Clerk, shutdown_timeout=5)
    await host.get(Clerk, "a").submit_messages("u1")
    await until(lambda: sent)
    host = await world.next_life()
    assert outcomes((await host.get(Clerk, "a").get_messages())[1]) == ["done"]
    assert await inbox(host) == [("ended", "completed")]
    await world.stop()
    assert sent == ["ann"]


# --- the ledger, moment by moment ----------------------------------------------------------------


class Probe:
    """Every batch that was committed, in order."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def before_commit(self, batches: Any) -> None: ...

    def after_commit(self, batches: Any) -> None:
        self.batches += batches

    def calls(self, statement: str) -> list[tuple[int, str]]:
        """The number of the batch, and the call."""
        return [
            (number, arguments[2])
            for number, batch in enumerate(self.batches)
            for each, arguments in batch.operations
            if each.name == statement
        ]

    def chunks(self, *types: str) -> list[tuple[int, str]]:
        return [
            (number, call)
            for number, batch in enumerate(self.batches)
            for each, arguments in batch.operations
            if each.name == "streams append"
            for line in str(arguments[5]).split("\n")
            for call in ("c1", "c2", "c3")
            if f'"toolCallId":"{call}"' in line and any(f'"type":"{t}"' in line for t in types)
        ]


@pytest.mark.invariant("E1", "I8")
async def test_intent_is_durable_before_a_tool_runs_and_its_outcome_with_its_chunk(
    store_url: str,
) -> None:
    seen: list[Any] = []

    async def act(self: Any, n: int, call: ToolCall) -> int:
        """Act."""
        rows = await ledger(host, "id, state, input")
        seen.append(next(row for row in rows if row[0] == call.id))
        await asyncio.sleep(n)
        if n == 2:
            raise ValueError("no")
        return n

    steps = [Step.call("act", {"n": n}, id=f"c{n}") for n in (1, 2, 3)]
    Clerk = talker(ScriptedModel(steps[0] + steps[1] + steps[2], "Done."), act=tool(act))
    probe, loop = Probe(), asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    store = await open_store(store_url, StoreOptions(probe=probe))
    loop.watch(store)
    async with Host([Clerk], store, ids=CountingIds(), clock=VirtualClock(loop)) as host:
        turn = await host.get(Clerk, "a").save_messages("u1")
    assert outcomes(turn.message) == ["done", "failed", "done"]
    assert sorted(seen) == [(f"c{n}", "begun", f'{{"n":{n}}}') for n in (1, 2, 3)]
    begun = {call: number for number, call in probe.calls("calls begin")}
    ended = probe.calls("calls end")
    assert len({number for number, _ in ended}) == 3, "each as it comes"
    assert sorted(ended) == probe.chunks("tool-output-available", "tool-output-error")
    assert all(begun[call] < number for number, call in ended)
    assert sorted(begun) == ["c1", "c2", "c3"]


@pytest.mark.invariant("I8")
@pytest.mark.parametrize("trouble", ["rejected", "context_overflow", "stall", "truncated"])
async def test_a_call_that_is_settled_never_runs_again(world: World, trouble: Any) -> None:
    broken = {
        "stall": Step.text("Well, ") + Step.stalls(),
        "truncated": Step.truncated("Well, "),
    }
    model = asking(broken.get(trouble) or Step.text("Well, ") + Step.fails(trouble))
    Clerk = clerk("once", give, model)
    Clerk.chat_stream_stall_timeout = 5
    host = await world.host(Clerk)
    turn = await host.get(Clerk, "a").save_messages("u1")
    assert (turn.status, turn.message.text) == ("error", "I send it. Well, ")
    assert outcomes(turn.message) == ["done"]
    await world.stop()
    model.answers[:] = ["", "Well, it is sent.", "Yes."]
    host = await world.next_life()
    a = host.get(Clerk, "a")
    await host.until_settled()
    await a.continue_last_turn()
    message = (await a.get_messages())[-1]
    assert message.text == "I send it. Well, it is sent."
    assert outcomes(message) == ["done"]
    model.answers[:] = ["Yes."]
    await a.save_messages("u2")
    assert said(await a.get_messages())[-1] == "assistant: Yes."
    assert await ledger(host) == [("send", "done")]
    await world.stop()
    assert sent == ["ann"]
    check_requests(model)
