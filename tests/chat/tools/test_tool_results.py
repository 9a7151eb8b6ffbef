"""What goes into a tool and what comes out: inputs, results in pieces, huge ones, and work for later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from chat_rows import prompts_of
from conversation import agent_of, leftovers, meddle, rows, talker, until_running
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from tool_calls import Lives, call_parts, check_requests, ledger, outcomes, returns

from outlast import Allow, Host, Think, ToolCall, tool
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time


# --- inputs --------------------------------------------------------------------------------------


def calls_of(messages: list[ModelMessage]) -> list[ToolCallPart]:
    return [
        part for each in messages if isinstance(each, ModelResponse) for part in each.tool_calls
    ]


INPUTS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "nothing": ("", {}),
    "an empty object": ("{}", {}),
    "an object": ('{"n": 2}', {"n": 2}),
    "null": ("null", None),
    "an empty list": ("[]", None),
    "a list": ('[{"n": 2}]', None),
    "a number": ("5", None),
    "a text": ('"n"', None),
    "the text of an object": ('"{\\"n\\": 2}"', None),
    "half an object": ('{"n": 2', None),
    "no JSON": ("n=2", None),
}


@pytest.mark.invariant("I1", "I4")
@pytest.mark.parametrize("what", INPUTS)
async def test_an_input_is_an_object_wherever_it_is_written(world: World, what: str) -> None:
    text, expected = INPUTS[what]
    given: list[int] = []

    async def act(n: int = 1) -> int:
        given.append(n)
        return n

    model = ScriptedModel(Step.call("act", text, id="c1"), "Done.")
    Agent = talker(model, get_tools=lambda _: [act])
    host = await world.host(Agent)
    chunks = [chunk async for chunk in host.get(Agent, "a").stream("u1")]
    (part,) = call_parts((await host.get(Agent, "a").get_messages())[1])
    assert part["input"] == (expected or {})
    assert outcomes((await host.get(Agent, "a").get_messages())[1]) == [
        "failed" if expected is None else "done"
    ]
    inputs = [json.loads(input) for _, input in await ledger(host, "id, input")]
    assert inputs == ([] if expected is None else [expected])
    await world.stop()
    assert given == ([] if expected is None else [expected.get("n", 1)])
    available = [chunk for chunk in chunks if chunk["type"] == "tool-input-available"]
    assert all(isinstance(chunk["input"], dict) for chunk in available)
    if expected is None:
        assert "arguments are invalid" in part["errorText"]
    host = await world.next_life()
    model.answers[:] = ["Again."]
    assert (await host.get(Agent, "a").save_messages("u2")).status == "completed"
    await world.stop()
    check_requests(model)


@pytest.mark.invariant("I4")
@pytest.mark.parametrize(
    ("stored", "read"),
    [('""', {}), ("[]", {}), ("null", {}), ("7", {}), ('"{\\"n\\": 2}"', {"n": 2}), ('"{"', {})],
)
async def test_an_input_is_an_object_wherever_it_is_read(
    world: World, stored: str, read: Any
) -> None:
    async def act(n: int) -> int:
        return n

    model = ScriptedModel(Step.call("act", {"n": 1}), "Done.")
    Agent = talker(model, get_tools=lambda _: [act])
    host = await world.host(Agent)
    await host.get(Agent, "a").save_messages("u1")
    ((id, body),) = await rows(host, "messages WHERE role = 'assistant'", "id, body")
    assert '"input":{"n":1}' in body
    changed = body.replace('"input":{"n":1}', f'"input":{stored}')
    await meddle(agent_of(host, Agent), "UPDATE messages SET body = ? WHERE id = ?", changed, id)
    await world.stop()
    model.answers[:] = ["Again."]
    host = await world.next_life()
    a = host.get(Agent, "a")
    assert (await a.save_messages("u2")).status == "completed"
    (part,) = call_parts((await a.get_messages())[1])
    assert (part["input"], part["output"]) == (read, 1)
    await world.stop()
    (call,) = calls_of(model.requests[-1].messages)
    assert call.args == read
    check_requests(model)


@pytest.mark.invariant("I1", "I2")
async def test_every_call_of_every_kind_has_one_result_in_each_request(world: World) -> None:
    class Agent(Think):
        model = ScriptedModel()

        @tool
        async def good(self) -> str:
            return "good"

        @tool
        async def bad(self) -> None:
            raise ValueError("bad")

        @tool(timeout=1)
        async def slow(self) -> None:
            await asyncio.sleep(100)

        @tool(needs_approval=True)
        async def dangerous(self) -> str:
            return "done"

    names = ["good", "bad", "slow", "dangerous", "dangerous", "client", "client", "unknown"]
    steps = [Step.call(name, {}, id=f"c{at}") for at, name in enumerate(names)]
    whole = Step.text("So.")
    for step in [*steps, Step.call("good", "{", id="c8")]:
        whole = whole + step
    Agent.model = model = ScriptedModel(whole, "Never.")
    host = await world.host(Agent)
    a = host.get(Agent, "a")
    schema = {"name": "client", "inputSchema": {"type": "object"}}
    turn = await a.save_messages("u1", client_tools=[schema])
    opened = ["done", "failed", "unknown", *["open"] * 4, "failed", "failed"]
    assert outcomes(turn.message) == opened
    assert await a.add_tool_approval("c3", False)
    assert await a.add_tool_output("c5", {"lat": 1})
    model.answers[:] = ["You went on."]
    await a.save_messages("u2")
    message = (await a.get_messages())[1]
    closed = ["done", "failed", "unknown", "denied", "failed", "done", *["failed"] * 3]
    assert outcomes(message) == closed
    told = {part.tool_call_id: part.outcome for part in returns(model)}
    assert told == {
        f"c{at}": {"done": "success", "denied": "denied"}.get(each, "failed")
        for at, each in enumerate(closed)
    }
    host = await world.next_life()
    await host.get(Agent, "a").save_messages("u3")
    assert call_parts((await host.get(Agent, "a").get_messages())[1]) == call_parts(message)
    await world.stop()
    check_requests(model)


# --- results in pieces ---------------------------------------------------------------------------


class Counter(Think):
    """Its tool counts, and tells how far it has come."""

    at: int | None = None  # where it raises, hangs or dies
    what: str = ""
    lives: Lives | None = None
    closed: list[int] = []
    hooked: list[str] = []

    @tool(timeout=50)
    async def count(self, to: int, call: ToolCall) -> AsyncIterator[Any]:
        """Count, one a second."""
        assert call.id == "c1"
        try:
            for n in range(1, to + 1):
                await asyncio.sleep(1)
                if n == self.at:
                    await self.trouble()
                yield {"n": n}
        finally:
            self.closed.append(to)

    async def trouble(self) -> None:
        if self.what == "dies":
            assert self.lives is not None
            self.lives.die()
        if self.what == "raises":
            raise ValueError("I cannot count that far")
        await asyncio.sleep(100)

    async def before_tool_call(self, context: Any) -> Any:
        self.hooked.append("before")
        return Allow(input={"to": context.input["to"]})

    async def after_tool_call(self, context: Any) -> None:
        self.hooked.append(f"after {context.output}")


@pytest.fixture
def counter() -> Any:
    """A class of its own for each test."""
    model = ScriptedModel(Step.call("count", {"to": 3}, id="c1"), "Counted.")
    members = {"model": model, "closed": [], "hooked": []}
    return type("Counter", (Counter,), members)


def results(chunks: list[Any]) -> list[Any]:
    return [chunk for chunk in chunks if chunk["type"].startswith("tool-output")]


def pieces(*numbers: int) -> list[Any]:
    found = {"type": "tool-output-available", "toolCallId": "c1", "preliminary": True}
    return [{**found, "output": {"n": n}} for n in numbers]


@pytest.mark.invariant("I15")
async def test_a_tool_that_yields_shows_each_result_and_the_last_one_counts(
    world: World, counter: Any
) -> None:
    host = await world.host(counter)
    a = host.get(counter, "a")
    began = asyncio.get_running_loop().time()
    seen = [(asyncio.get_running_loop().time() - began, chunk) async for chunk in a.stream("u1")]
    last = {"type": "tool-output-available", "toolCallId": "c1", "output": {"n": 3}}
    told = results([chunk for _, chunk in seen])
    assert told == [*pieces(1, 2, 3), last]
    times = [round(at) for at, chunk in seen if chunk.get("preliminary")]
    assert times == [1, 2, 3], "as they come"
    (part,) = call_parts((await a.get_messages())[1])
    assert (part["state"], part["output"]) == ("output-available", {"n": 3})
    assert "preliminary" not in part
    assert await ledger(host) == [("count", "done")]
    await world.stop()
    assert counter.hooked == ["before", "after {'n': 3}"]
    (told,) = returns(counter.model)
    assert told.content == {"n": 3}
    check_requests(counter.model)


@pytest.mark.invariant("I15")
async def test_a_tool_that_yields_and_then_fails_has_failed(world: World, counter: Any) -> None:
    counter.what, counter.at = "raises", 3
    host = await world.host(counter)
    a = host.get(counter, "a")
    told = results([chunk async for chunk in a.stream("u1")])
    assert told[:-1] == pieces(1, 2)
    assert told[-1]["errorText"].startswith("The tool failed. (error_")
    (part,) = call_parts((await a.get_messages())[1])
    assert part["state"] == "output-error"
    assert "output" not in part
    assert "preliminary" not in part
    assert await ledger(host) == [("count", "failed")]
    await world.stop()
    assert counter.closed == [3]


@pytest.mark.invariant("I15", "D12")
@pytest.mark.parametrize("how", ["stopped", "too late"])
async def test_a_tool_that_yields_and_is_cut_short_is_unknown_and_closed(
    world: World, counter: Any, how: str
) -> None:
    counter.what, counter.at = "hangs", 3
    host = await world.host(counter)
    a = host.get(counter, "a")
    turn = asyncio.create_task(a.save_messages("u1"))
    running = await until_running(host, counter)
    await asyncio.sleep(4)
    if how == "stopped":
        await a.cancel_chat(running.request_id)
    ended = await turn
    assert ended.status == ("aborted" if how == "stopped" else "completed")
    assert outcomes(ended.message) == ["unknown"]
    assert "output" not in call_parts(ended.message)[0]
    stored = [chunk async for _, chunk in a.resume_stream(running.request_id)]
    assert results(stored)[:-1] == pieces(1, 2)
    await host.until_settled()
    assert leftovers(agent_of(host, counter)) == {}
    await world.stop()
    assert counter.closed == [3]


@pytest.mark.invariant("I2", "I15")
def test_a_tool_that_yields_and_dies_is_unknown_and_what_was_seen_stays(
    store_url: str, counter: Any
) -> None:
    counter.what, counter.at, counter.lives = "dies", 3, (lives := Lives(store_url, counter))
    seen: list[Any] = []

    async def ask(host: Host) -> None:
        async for chunk in host.get(counter, "a").stream("u1"):
            seen.append(chunk)

    async def look(host: Host) -> None:
        await host.until_settled()
        a = host.get(counter, "a")
        assert outcomes((await a.get_messages())[1]) == ["unknown"]
        ((request,),) = await rows(host, "inbox", "id")
        stored = [chunk async for _, chunk in a.resume_stream(request)]
        assert stored[: len(seen)] == seen

    assert lives.run(ask).died
    assert results(seen) == pieces(1, 2)
    lives.run(look)


@pytest.mark.invariant("I15")
async def test_nothing_follows_the_outcome_of_a_tool_that_goes_on_yielding(world: World) -> None:
    @tool(timeout=2)
    async def stubborn() -> AsyncIterator[int]:
        for n in range(20):
            try:
                await asyncio.sleep(0.3)
            except asyncio.CancelledError:
                continue
            yield n

    model = ScriptedModel(Step.call("stubborn", id="c1"), Step.text("one two three", delay=1))
    Agent = talker(model, get_tools=lambda _: [stubborn])
    host = await world.host(Agent)
    told = results([chunk async for chunk in host.get(Agent, "a").stream("u1")])
    await asyncio.sleep(10)
    kinds = [chunk["type"] for chunk in told]
    assert kinds[-1] == "tool-output-error"
    assert kinds.count("tool-output-error") == 1
    assert outcomes((await host.get(Agent, "a").get_messages())[1]) == ["unknown"]


@pytest.mark.parametrize("yielded", [[], [object()], [object(), "fine"]], ids=len)
async def test_what_cannot_be_shown_on_the_way_is_left_out(
    sqlite_world: World, yielded: list[Any]
) -> None:
    async def odd() -> AsyncIterator[Any]:
        for each in yielded:
            yield each

    Agent = talker(ScriptedModel(Step.call("odd", id="c1"), "Done."), get_tools=lambda _: [odd])
    host = await sqlite_world.host(Agent)
    told = results([chunk async for chunk in host.get(Agent, "a").stream("u1")])
    message = (await host.get(Agent, "a").get_messages())[1]
    await sqlite_world.stop()
    if len(yielded) == 1:
        assert (len(told), outcomes(message)) == (1, ["unknown"])
    else:
        assert told[-1].get("output") == ("fine" if yielded else None)
        assert outcomes(message) == ["done"]


# --- huge ones -----------------------------------------------------------------------------------


@pytest.mark.invariant("I17", "E3")
async def test_a_huge_result_is_stored_whole_and_cut_for_the_model_when_it_is_old(
    world: World,
) -> None:
    lines = [{"line": n, "text": "x" * 1000} for n in range(5000)]  # 5 MB

    async def read() -> Any:
        return {"lines": lines, "next": None}

    model = ScriptedModel(Step.calls("read"), "Read.")
    Agent = talker(model, get_tools=lambda _: [read])
    host = await world.host(Agent)
    turn = await host.get(Agent, "a").save_messages("u1")
    assert call_parts(turn.message)[0]["output"] == {"lines": lines, "next": None}
    await world.stop()
    model.answers[:] = ["Well."]
    host = await world.next_life()
    a = host.get(Agent, "a")
    for n in range(2, 8):
        assert (await a.save_messages(f"u{n}")).status == "completed"
    (told,) = returns(model)
    content: Any = told.content
    assert len(json.dumps(content)) < 2000
    assert isinstance(content["lines"], list)
    assert content["lines"][0]["line"] == 0
    assert "more" in str(content["lines"][-1]), "it says that it was cut"
    (part,) = call_parts((await a.get_messages())[1])
    assert part["output"] == {"lines": lines, "next": None}
    await world.stop()
    check_requests(model)


@pytest.mark.parametrize("effect", ["read", "once"])
async def test_a_result_that_the_store_does_not_take_ends_its_call_with_an_error(
    world: World, effect: Any
) -> None:
    """It left the stream without an end, and recovery ran the tool again and again."""
    runs: list[int] = []

    @tool(effect=effect)
    async def fetch(size: int) -> str:
        runs.append(size)
        return "x" * size

    sizes = [70 * 2**20, 40 * 2**20, 40 * 2**20]  # the last two do not fit into one message
    calls = [Step.call("fetch", {"size": size}, id=f"c{n}") for n, size in enumerate(sizes)]
    model = ScriptedModel(calls[0] + calls[1] + calls[2], "Read.")
    Agent = talker(model, get_tools=lambda _: [fetch])
    host = await world.host(Agent)
    turn = await host.get(Agent, "a").save_messages("u1")
    assert turn.status == "completed"
    parts = call_parts(turn.message)
    states = [part["state"] for part in parts]
    assert states[0] == "output-error"
    assert sorted(states[1:]) == ["output-available", "output-error"]
    for part in parts:
        if part["state"] == "output-error":
            assert "ran, but its result cannot be stored" in part["errorText"]
            assert "this message has room for" in part["errorText"]
    assert sorted(runs) == sorted(sizes)
    await world.stop()
    model.answers[:] = ["Again."]
    host = await world.next_life()
    assert (await host.get(Agent, "a").save_messages("u2")).status == "completed"
    assert sorted(runs) == sorted(sizes)


# --- work for later ------------------------------------------------------------------------------


def later(messages: list[ModelMessage]) -> Step:
    """Two calls, which are both answered before anything else is said."""
    if prompts_of(messages)[-1] == "later":
        return Step.text("It is later.")
    if any(part.part_kind == "tool-return" for part in messages[-1].parts):
        return Step.text("Done.")
    return Step.call("act", {}, id="c1") + Step.call("act", {}, id="c2")


@pytest.mark.invariant("I13")
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_a_tool_admits_is_admitted_once_when_its_call_is_made_again(
    store_url: str, is_restarted: bool
) -> None:
    ticks: list[str] = []
    jobs: list[int] = []

    class Agent(Think):
        model = ScriptedModel.answering(later)

        @tool
        async def act(self, call: ToolCall) -> str:
            await self.submit_messages("later")
            await self.schedule(60, self.tick, call.id)
            await self.start_fiber("job", self.job, 1)
            if not call.approved:
                raise ApprovalRequired
            return "done"

        async def tick(self, id: str) -> None:
            ticks.append(id)

        async def job(self, fiber: Any, n: int) -> None:
            jobs.append(n)

    async with hosting(Agent, url=store_url) as host:
        turn = await host.get(Agent, "a").save_messages("u1")
        assert outcomes(turn.message) == ["open", "open"]
        await asyncio.sleep(120)
        assert (sorted(ticks), jobs) == (["c1", "c2"], [1, 1])
        if not is_restarted:
            await approve(host, Agent)
    if is_restarted:
        async with hosting(Agent, url=store_url, life="2") as host:
            await approve(host, Agent)
    assert (sorted(ticks), jobs) == (["c1", "c2"], [1, 1])


async def approve(host: Host, Agent: type[Any]) -> None:
    """Both calls run again, and what they had admitted is there once."""
    a = host.get(Agent, "a")
    for id in ("c1", "c2"):
        assert await a.add_tool_approval(id, True)
    await host.until_settled()
    await asyncio.sleep(120)
    await host.until_settled()
    assert outcomes((await a.get_messages())[1]) == ["done", "done"]
    assert await a.get_schedules() == []
    asked = [message.text for message in await a.get_messages() if message.role == "user"]
    assert asked == ["u1", "later", "later"]
    assert len(await rows(host, "fibers")) == 2
    assert await rows(host, "admissions") == []
