"""Calls that a tool makes while it runs: each has a row of its own, and the rules of its tool."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from conversation import answering, rows, until_running
from interacting import schema
from pydantic import BaseModel
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.toolsets import FunctionToolset
from tool_calls import Lives, call_parts, check_requests, go_on, ledger, outcomes, returns

from outlast import Allow, Block, Host, NotDone, Substitute, Think, ToolCall, ToolError, tool
from outlast.agent.agent import parts_of
from outlast.chat.answer.calls import HAS_ACTED, current_calls
from outlast.chat.tools.toolset import tool_source
from outlast.chat.types.events import ToolEvent
from outlast.core.errors import ApprovalInside, CallChanged, CallFailed, OutcomeUnknown
from outlast.store.operations import BulkStatement, Operation
from outlast.testing import Step
from outlast.testing.death import Drive
from support import World, forever, hosting, listen

pytestmark = pytest.mark.virtual_time

Body = Callable[[Any, ToolCall], Awaitable[Any]]

done: list[str] = []  # the world outside
asked: list[str] = []  # of `reconcile`


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    done.clear()
    asked.clear()


class Outer(Think):
    """Its tool `program` does what a test wants."""

    body: Body

    @tool(effect="idempotent")
    async def program(self, call: ToolCall) -> Any:
        """Run a program."""
        return await type(self).body(self, call)

    @tool(effect="once", reconcile="find_out")
    async def pay(self, amount: int, call: ToolCall) -> str:
        """Pay."""
        done.append(call.idempotency_key)
        return f"paid {amount}"

    async def find_out(self, call: ToolCall) -> Any:
        asked.append(call.id)
        return f"found {call.input['amount']}" if call.idempotency_key in done else NotDone()

    @tool(effect="read")
    async def look(self) -> dict[str, Any]:
        """Look."""
        done.append("look")
        return {"seen": (1, 2)}

    @tool
    async def fail(self) -> None:
        """Fail."""
        done.append("fail")
        raise ToolError("The disk is full.")

    @tool
    async def leak(self) -> None:
        """Fail with a secret."""
        raise ConnectionError("postgresql://admin:hunter2@db")

    @tool(needs_approval=True)
    async def strict(self) -> None:
        """Needs an approval."""
        done.append("strict")

    @tool
    async def asks(self) -> None:
        """Wants an approval while it runs."""
        raise ApprovalRequired

    @tool(effect="idempotent", idempotency_key=lambda call: call.input["order"])
    async def charge(self, order: str) -> str:
        """Charge for an order."""
        done.append(order)
        return f"charged {order}"

    @tool(timeout=1)
    async def slow(self) -> None:
        """Take too long."""
        done.append("slow")
        await forever()

    @tool(effect="read")
    async def count(self) -> Any:
        """Show results on the way."""
        for n in range(3):
            yield n


def running(body: Body, *answers: Any, base: type[Outer] = Outer, **members: Any) -> type[Any]:
    model = answering(*(answers or (Step.call("program", {}, id="c1"), "Done.")))
    return type("Talker", (base,), {"model": model, "body": staticmethod(body), **members})


async def run(url: str, body: Body, **members: Any) -> tuple[type[Any], Any, list[Any]]:
    """The agent, the part of its call and what the ledger has after a turn."""
    Talker = running(body, **members)
    async with hosting(Talker, url=url) as host:
        turn = await host.get(Talker, "a").save_messages("u1", client_tools=[schema("locate")])
        assert turn.status == "completed"
        [part] = call_parts(turn.message)
        found = await ledger(host, "id, name, effect, state, output")
    check_requests(Talker.model)
    return Talker, part, found


# --- in one life ---------------------------------------------------------------------------------


async def test_a_call_inside_another_has_a_row_and_no_chunk(world: World) -> None:
    async def body(self: Any, call: ToolCall) -> Any:
        calls = current_calls()
        seen = await calls.inside(call, 1, "look", {})
        return [seen, await calls.inside(call, 2, "pay", '{"amount": 5}')]

    Talker = running(body)
    host = await world.host(Talker)
    told = listen(host, ToolEvent)
    chunks = [chunk async for chunk in host.get(Talker, "a").stream("u1")]
    [(message,)] = await rows(host, "inbox", "message_id")
    found = await ledger(host, "id, name, effect, state, output, input")
    await world.stop()
    assert found == [
        ("c1", "program", "idempotent", "done", None, "{}"),
        ("c1/1", "look", "read", "done", '{"seen":[1,2]}', "{}"),
        ("c1/2", "pay", "once", "done", '"paid 5"', '{"amount":5}'),
    ]
    assert {chunk["toolCallId"] for chunk in chunks if "toolCallId" in chunk} == {"c1"}
    assert [part.content for part in returns(Talker.model)] == [[{"seen": [1, 2]}, "paid 5"]]
    assert done == ["look", f"{message}:c1/2"], "the key of a call inside is its own"
    ids = [event.tool_call_id for event in told]  # type: ignore[attr-defined]
    assert ids == ["c1", "c1/1", "c1/1", "c1/2", "c1/2", "c1"]


async def test_calls_run_side_by_side_and_inside_one_another(store_url: str) -> None:
    async def body(self: Any, call: ToolCall) -> Any:
        calls = current_calls()
        work = (calls.inside(call, n, "nested", {"n": n}) for n in range(3))
        return await asyncio.gather(*work)

    async def nested(self: Any, n: int, call: ToolCall) -> str:
        await asyncio.sleep(1)
        return str(await current_calls().inside(call, 0, "pay", {"amount": n}))

    _, part, found = await run(store_url, body, nested=tool(effect="idempotent")(nested))
    assert part["output"] == ["paid 0", "paid 1", "paid 2"]
    inner = [f"c1/{n}{more}" for n in range(3) for more in ("", "/0")]
    assert sorted(row[0] for row in found) == ["c1", *inner]
    assert len(done) == 3


FAILURES: dict[str, tuple[str, type[Exception], str, list[str]]] = {
    "a tool error": ("fail", CallFailed, "The disk is full.", ["failed"]),
    "a secret": ("leak", CallFailed, "The tool failed. (error_", ["failed"]),
    "an approval": ("strict", ApprovalInside, "'strict' needs an approval", []),
    "an approval on the way": ("asks", ApprovalInside, "'asks' needs an approval", ["failed"]),
    "a timeout": ("slow", OutcomeUnknown, "The outcome of this call is unknown", ["unknown"]),
    "no such tool": ("nothing", CallFailed, "There is no tool 'nothing'", []),
    "a tool of the client": ("locate", CallFailed, "'locate' runs elsewhere", []),
    "arguments": ("pay", CallFailed, "The arguments are invalid", []),
}


@pytest.mark.parametrize("what", FAILURES)
async def test_what_goes_wrong_is_raised_in_the_tool_around(store_url: str, what: str) -> None:
    """It may go on; if it does not, its own call fails with the text that may be read."""
    name, kind, text, states = FAILURES[what]
    raised: list[Exception] = []

    async def body(self: Any, call: ToolCall) -> Any:
        try:
            await current_calls().inside(call, 1, name, {})
        except Exception as error:
            raised.append(error)
        return await current_calls().inside(call, 2, name, {})

    Talker, part, found = await run(store_url, body)
    [error] = raised
    assert type(error) is kind
    assert text in str(error)
    assert part["state"] == "output-error"
    assert text in part["errorText"]
    assert "hunter2" not in str(part)
    assert [row[3] for row in found if row[0] == "c1/1"] == states
    assert "strict" not in done


async def test_hooks_see_calls_inside_others_and_decide_about_them(store_url: str) -> None:
    seen: list[tuple[str, str, Any]] = []

    def before(self: Any, context: Any) -> Any:
        seen.append(("before", context.tool_call_id, dict(context.input)))
        decisions = {
            "c1/1": Block("Not today."),
            "c1/2": Substitute("instead"),
            "c1/3": Allow({"amount": 7}),
        }
        return decisions.get(context.tool_call_id)

    def after(self: Any, context: Any) -> None:
        seen.append(("after", context.tool_call_id, context.output))

    async def body(self: Any, call: ToolCall) -> Any:
        calls = current_calls()
        with pytest.raises(CallFailed, match=r"^Not today\.$"):
            await calls.inside(call, 1, "pay", {"amount": 1})
        return [await calls.inside(call, n, "pay", {"amount": n}) for n in (2, 3)]

    hooks = {"before_tool_call": before, "after_tool_call": after}
    _, part, _ = await run(store_url, body, **hooks)
    assert part["output"] == ["instead", "paid 7"]
    assert len(done) == 1, "what is blocked does not run"
    assert [each[:2] for each in seen if each[1] != "c1"] == [
        (when, f"c1/{n}") for n in (1, 2, 3) for when in ("before", "after")
    ]
    assert seen[-2] == ("after", "c1/3", "paid 7")


async def test_a_key_of_ones_own_counts_inside_too(store_url: str) -> None:
    async def body(self: Any, call: ToolCall) -> Any:
        calls = current_calls()
        return [await calls.inside(call, n, "charge", {"order": "7"}) for n in range(2)]

    _, part, found = await run(store_url, body)
    assert part["output"] == ["charged 7"] * 2
    assert done == ["7"]
    assert [row[:4] for row in found] == [
        ("c1", "program", "idempotent", "done"),
        ("c1/0", "charge", "idempotent", "done"),
    ]


async def test_what_a_model_is_not_offered_cannot_be_called_inside(store_url: str) -> None:
    from outlast import TurnConfig

    async def body(self: Any, call: ToolCall) -> Any:
        return await current_calls().inside(call, 1, "pay", {"amount": 1})

    hook = {"before_turn": lambda *_: TurnConfig(active_tools=["program"])}
    _, part, _ = await run(store_url, body, **hook)
    assert "There is no tool 'pay'. Available tools: program." in part["errorText"]
    assert done == []


async def test_a_tool_may_bring_tools_that_the_model_does_not_see(store_url: str) -> None:
    async def hidden(n: int) -> int:
        return n + 1

    async def body(self: Any, call: ToolCall) -> Any:
        own = tool_source("program", [hidden])
        calls = current_calls()
        with pytest.raises(CallFailed, match="There is no tool 'look'"):
            await calls.inside(call, 1, "look", {}, tools=own)
        return await calls.inside(call, 2, "hidden", {"n": 1}, tools=own)

    Talker, part, _ = await run(store_url, body)
    assert part["output"] == 2
    assert "hidden" not in Talker.model.requests[0].tools


async def test_results_on_the_way_are_shown_to_nobody(store_url: str) -> None:
    async def body(self: Any, call: ToolCall) -> Any:
        return await current_calls().inside(call, 1, "count", {})

    _, part, _ = await run(store_url, body)
    assert part["output"] == 2


def ride(agent: str) -> Operation:
    sql = "INSERT INTO facts (agent, name, value) VALUES (?, ?, ?)"
    return BulkStatement.same("note", sql), (agent, "ridden", '"yes"')


async def test_what_rides_is_written_with_the_intent(world: World) -> None:
    async def body(self: Any, call: ToolCall) -> Any:
        riding = [ride("Talker/a")]
        return await current_calls().inside(call, 1, "pay", {"amount": 1}, riding)

    commits: list[list[str]] = []
    Talker = running(body)
    host = await world.host(Talker)
    submit = host.store.submit

    def noted(fence: Any, operations: Any) -> Any:
        commits.append([statement.name for statement, _ in operations])
        return submit(fence, operations)

    host.store.submit = noted  # type: ignore[method-assign]
    await host.get(Talker, "a").save_messages("u1")
    await world.stop()
    [with_note] = [each for each in commits if "note" in each]
    assert "calls begin" in with_note


async def test_numbers_are_used_once(store_url: str) -> None:
    async def body(self: Any, call: ToolCall) -> Any:
        calls = current_calls()
        await calls.inside(call, 1, "look", {})
        with pytest.raises(
            ValueError, match="seq must be different for each call inside 'c1', got 1 again"
        ):
            await calls.inside(call, 1, "look", {})
        return "ok"

    _, part, _ = await run(store_url, body)
    assert (part["output"], done) == ("ok", ["look"])


@pytest.mark.parametrize("seq", [-1, "1", "1/2", None, 1.0])
async def test_a_number_is_a_number(sqlite_url: str, seq: Any) -> None:
    async def body(self: Any, call: ToolCall) -> Any:
        with pytest.raises(ValueError, match="seq must be a non-negative int, got"):
            await current_calls().inside(call, seq, "look", {})
        return "ok"

    _, part, _ = await run(sqlite_url, body)
    assert (part["output"], done) == ("ok", [])


async def test_a_call_of_the_model_with_the_id_of_one_inside(sqlite_world: World) -> None:
    """Its row is not touched."""

    async def body(self: Any, call: ToolCall) -> Any:
        return await current_calls().inside(call, 1, "pay", {"amount": 1})

    both = Step.call("program", {}, id="c1") + Step.call("look", {}, id="c1/1")
    Talker = running(body, both, "Done.")
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert outcomes(turn.message) == ["failed", "done"]
    assert await ledger(host, "id, name") == [("c1", "program"), ("c1/1", "look")]
    await sqlite_world.stop()
    assert done == ["look"]


async def test_calls_inside_one_another_are_not_endless(sqlite_url: str) -> None:
    async def nested(self: Any, call: ToolCall) -> Any:
        done.append(call.id)
        return await current_calls().inside(call, 0, "nested", {})

    async def body(self: Any, call: ToolCall) -> Any:
        return await current_calls().inside(call, 0, "nested", {})

    _, part, _ = await run(sqlite_url, body, nested=tool(effect="read")(nested))
    assert part["errorText"] == "Calls are nested too deeply: at most 16 levels are allowed."
    assert len(done) == 16


class Point(BaseModel):
    x: int


ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "a tuple": ({"value": (1, 2)}, [1, 2]),
    "a date": ({"value": datetime.date(2031, 1, 2)}, "2031-01-02"),
    "a model": ({"value": Point(x=1)}, {"x": 1}),
    "number keys": ({"value": {1: "a"}}, {"1": "a"}),
    "not a number": ({"value": float("nan")}, None),
    "text": ('{"value": [1]}', [1]),
}


@pytest.mark.parametrize("what", ARGUMENTS)
def test_arguments_are_the_same_after_a_crash(sqlite_url: str, what: str) -> None:
    """They are given as JSON has them, and compared so."""
    lives: Lives
    results: list[Any] = []
    arguments, expected = ARGUMENTS[what]

    async def echo(self: Any, value: Any) -> Any:
        done.append("echo")
        return value

    async def body(self: Any, call: ToolCall) -> Any:
        results.append(await current_calls().inside(call, 1, "echo", arguments))
        if len(results) == 1:
            lives.die()

    Talker = running(body, echo=tool()(echo))
    lives = Lives(sqlite_url, Talker)
    lives.run(asking(Talker))
    lives.run(Host.until_settled)
    assert (results, done) == ([expected] * 2, ["echo"])


async def test_arguments_that_are_no_json(sqlite_url: str) -> None:
    async def body(self: Any, call: ToolCall) -> Any:
        with pytest.raises(TypeError, match="arguments must be JSON, got dict: "):
            await current_calls().inside(call, 1, "pay", {"amount": object()})
        with pytest.raises(CallFailed, match="must be a JSON object"):
            await current_calls().inside(call, 2, "pay", [1])
        return await current_calls().inside(call, 1, "pay", {"amount": 1})

    _, part, _ = await run(sqlite_url, body)
    assert part["output"] == "paid 1"


async def test_only_a_tool_that_runs_can_call_others(store_url: str) -> None:
    with pytest.raises(RuntimeError, match="must be called by a tool while it runs"):
        current_calls()
    late: list[Any] = []

    async def body(self: Any, call: ToolCall) -> Any:
        late[:] = [current_calls(), call]

    await run(store_url, body)
    calls, call = late
    with pytest.raises(RuntimeError, match="the call 'c1' has ended, so it cannot call 'pay'"):
        await calls.inside(call, 1, "pay", {"amount": 1})
    assert done == []


@pytest.mark.parametrize("error", [ApprovalRequired, CallDeferred])
async def test_a_call_that_has_called_others_cannot_wait_any_more(
    store_url: str, error: type[Exception]
) -> None:
    """It would run from the start in another turn, and make its calls a second time."""

    async def body(self: Any, call: ToolCall) -> Any:
        await current_calls().inside(call, 1, "pay", {"amount": 1})
        raise error

    _, part, found = await run(store_url, body)
    assert (part["state"], part["errorText"]) == ("output-error", HAS_ACTED)
    assert [row[3] for row in found] == ["failed", "done"]


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_call_that_is_stopped_stops_those_inside(
    world: World, how: str, stubborn: bool
) -> None:
    """The ledger has an outcome for each, also if neither stops; what does not stop makes no more calls."""
    release = asyncio.Event()

    async def hang() -> None:
        await (go_on(release) if stubborn else forever())

    async def wait(self: Any) -> None:
        done.append("wait")
        await hang()

    async def body(self: Any, call: ToolCall) -> Any:
        try:
            await current_calls().inside(call, 1, "wait", {})
        finally:
            if stubborn:
                await go_on(release)
                try:
                    await current_calls().inside(call, 2, "pay", {"amount": 1})
                except RuntimeError as error:
                    done.append(str(error))

    class Limited(Outer):
        @tool(effect="idempotent", timeout=2)
        async def program(self, call: ToolCall) -> Any:
            """Run a program."""
            return await type(self).body(self, call)

    base = Limited if how == "timeout" else Outer
    Talker = running(body, base=base, wait=tool()(wait))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turn = asyncio.create_task(a.save_messages("u1"))
    await asyncio.sleep(1)
    if how == "cancel":
        await a.cancel_chat((await until_running(host, Talker)).request_id)
    async with asyncio.timeout(5):
        await turn
    expected = [("c1", "failed"), ("c1/1", "unknown")]
    assert await ledger(host, "id, state") == expected
    release.set()
    await host.until_settled()
    assert await ledger(host, "id, state") == expected
    await world.stop()
    too_late = "the call 'c1' has ended, so it cannot call 'pay'"
    assert done == ["wait", too_late] if stubborn else done == ["wait"]


@pytest.mark.parametrize("where", ["tool", "hook", "tools", "intent"])
async def test_what_a_call_leaves_running_is_stopped_when_it_ends(world: World, where: str) -> None:
    release, left = asyncio.Event(), []

    async def before(self: Any, context: Any) -> None:
        if where == "hook" and "/" in context.tool_call_id:
            await release.wait()

    async def wait(self: Any) -> None:
        done.append("began")
        await release.wait()
        done.append("went on")

    class Late(FunctionToolset[Any]):
        async def get_tools(self, ctx: Any) -> Any:
            await release.wait()
            return await super().get_tools(ctx)

    async def body(self: Any, call: ToolCall) -> Any:
        tools = tool_source("late", [Late([self.wait])]) if where == "tools" else None
        work = current_calls().inside(call, 1, "wait", {}, tools=tools)
        left.append(asyncio.create_task(work))
        await asyncio.sleep(0 if where == "intent" else 1)
        return "ok"

    members = {"wait": tool()(wait)} | ({} if where == "tool" else {"before_tool_call": before})
    Talker = running(body, **members)
    host = await world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    release.set()
    await asyncio.wait(left, timeout=10)
    await host.until_settled()
    found = await ledger(host, "id, state")
    await world.stop()
    assert isinstance(left[0].exception(), OutcomeUnknown if where == "tool" else Exception)
    assert done == (["began"] if where == "tool" else [])
    assert ("c1/1", "done") not in found
    assert {state for _, state in found} <= {"done", "failed", "unknown"}


@pytest.mark.parametrize("finishes", [False, True])
async def test_a_program_may_stop_waiting_for_a_call(store_url: str, finishes: bool) -> None:
    """The call is stopped, and its row says what became of it."""

    async def wait(self: Any) -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            if not finishes:
                raise
        return "done all the same"

    async def body(self: Any, call: ToolCall) -> Any:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await current_calls().inside(call, 1, "wait", {})
        return "ok"

    _, part, found = await run(store_url, body, wait=tool()(wait))
    assert part["output"] == "ok"
    assert found[1][3] == ("done" if finishes else "unknown")


async def test_a_result_that_cannot_be_recorded_is_not_returned(sqlite_url: str) -> None:
    async def large(self: Any, n: int) -> str:
        return "x" * n

    async def body(self: Any, call: ToolCall) -> Any:
        most = parts_of(self).activation.store.options.max_value_bytes
        calls = current_calls()
        with pytest.raises(OutcomeUnknown, match="its result cannot be stored"):
            await calls.inside(call, 1, "large", {"n": most})
        return len(await calls.inside(call, 2, "large", {"n": most // 8}))

    _, part, found = await run(sqlite_url, body, large=tool()(large))
    assert part["state"] == "output-available"
    assert [row[3] for row in found] == ["done", "unknown", "done"]


# --- after a crash -------------------------------------------------------------------------------


def test_what_was_done_is_returned_and_what_was_raised_is_raised_again(store_url: str) -> None:
    lives: Lives
    results: list[list[Any]] = []

    async def body(self: Any, call: ToolCall) -> Any:
        calls, got = current_calls(), []
        results.append(got)
        got.append(await calls.inside(call, 1, "look", {}))
        got.append(await calls.inside(call, 2, "pay", {"amount": 5}))
        for n, name in ((3, "fail"), (4, "slow"), (5, "asks")):
            try:
                await calls.inside(call, n, name, {})
            except Exception as error:
                got.append((type(error), str(error)))
        if len(results) == 1:
            await self.storage.put("x", 1)  # everything before it is durable
            lives.die()
        return "ok"

    Talker = running(body)
    lives = Lives(store_url, Talker)
    lives.run(asking(Talker))
    lives.run(Host.until_settled)
    assert results[0] == results[1]
    assert [kind for kind, _ in results[1][2:]] == [CallFailed, OutcomeUnknown, ApprovalInside]
    assert (len(done), done.count("look")) == (4, 1), "nothing ran a second time"
    check_requests(Talker.model)


def asking(Talker: type[Any]) -> Drive:
    async def act(host: Host) -> None:
        await host.get(Talker, "a").submit_messages("u1")
        await host.until_settled()

    return act


@pytest.mark.parametrize(
    ("name", "happened", "expected"),
    [
        ("reads", True, "again"),
        ("repeats", True, "again"),
        ("pay", True, "found 5"),
        ("pay", False, CallFailed),
        ("once", True, OutcomeUnknown),
    ],
)
def test_a_call_that_had_begun(store_url: str, name: str, happened: bool, expected: Any) -> None:
    """It runs again if it may; otherwise `reconcile` is asked, and if nobody knows, it does not run."""
    lives: Lives
    ran: list[str] = []
    results: list[Any] = []

    async def body(self: Any, call: ToolCall) -> Any:
        try:
            results.append(await current_calls().inside(call, 1, name, {"amount": 5}))
        except Exception as error:
            results.append(type(error))
            raise
        return "ok"

    async def dying(self: Any, amount: int, call: ToolCall) -> str:
        ran.append(call.idempotency_key)
        if happened:
            done.append(call.idempotency_key)
        if len(ran) == 1:
            lives.die()
        return "again"

    dying.__name__ = name
    options: dict[str, Any] = {
        "reads": {"effect": "read"},
        "repeats": {"effect": "idempotent"},
        "pay": {"effect": "once", "reconcile": "find_out"},
        "once": {"effect": "once"},
    }
    Talker = running(body, **{name: tool(**options[name])(dying)})
    lives = Lives(store_url, Talker)
    lives.run(asking(Talker))
    lives.run(Host.until_settled)
    lives.run(check_settled)
    assert results == [expected]
    may_repeat = name in ("reads", "repeats")
    assert ran == ran[:1] * (2 if may_repeat else 1), "with the same key"
    assert asked == (["c1/1"] if name == "pay" else [])


def test_what_rides_is_written_once(store_url: str) -> None:
    """A call that runs again has its row already, and with it what rode in that commit."""
    lives: Lives

    async def dying(self: Any) -> str:
        done.append("dying")
        if len(done) == 1:
            lives.die()
        return "again"

    async def body(self: Any, call: ToolCall) -> Any:
        return await current_calls().inside(call, 1, "dying", {}, [ride("Talker/a")])

    Talker = running(body, dying=tool(effect="read")(dying))
    lives = Lives(store_url, Talker)
    found: list[Any] = []

    async def look(host: Host) -> None:
        await host.until_settled()
        found[:] = [row for row in await rows(host, "facts", "name, value") if row[0] == "ridden"]
        found.extend(await ledger(host, "id, state"))

    lives.run(asking(Talker))
    lives.run(look)
    assert found[0] == ("ridden", '"yes"')
    assert dict(found[1:]) == {"c1": "done", "c1/1": "done"}


@pytest.mark.parametrize("effect", ["read", "once"])
def test_a_call_that_is_not_made_again_gets_an_outcome(store_url: str, effect: Any) -> None:
    """The tool around ran again, and did something else."""
    lives: Lives

    async def dying(self: Any) -> None:
        done.append("dying")
        lives.die()

    async def body(self: Any, call: ToolCall) -> Any:
        if not done:
            await current_calls().inside(call, 1, "dying", {})
        return "ok"

    Talker = running(body, dying=tool(effect=effect)(dying))
    lives = Lives(store_url, Talker)
    states: dict[str, str] = {}

    async def look(host: Host) -> None:
        await host.until_settled()
        states.update(await ledger(host, "id, state"))

    lives.run(asking(Talker))
    lives.run(look)
    assert states == {"c1": "done", "c1/1": "failed" if effect == "read" else "unknown"}


async def check_settled(host: Host) -> None:
    await host.until_settled()
    assert {state for (state,) in await ledger(host, "state")} <= {"done", "failed", "unknown"}


@pytest.mark.parametrize(
    ("second", "raises"),
    [
        (("pay", {"amount": 5}), False),
        (("pay", {"amount": 6}), True),
        (("look", {}), True),
    ],
)
def test_a_result_is_not_taken_for_that_of_another_call(
    store_url: str, second: tuple[str, dict[str, Any]], raises: bool
) -> None:
    lives: Lives
    results: list[Any] = []

    async def body(self: Any, call: ToolCall) -> Any:
        name, given = ("pay", {"amount": 5}) if not results else second
        try:
            results.append(await current_calls().inside(call, 1, name, given))
        except CallChanged as error:
            results.append(str(error))
            raise
        if len(results) == 1:
            await self.storage.put("x", 1)
            lives.die()

    Talker = running(body)
    lives = Lives(store_url, Talker)
    lives.run(asking(Talker))
    lives.run(Host.until_settled)
    assert len(done) == 1
    if raises:
        assert results[1].startswith(
            'call c1/1 must be pay({"amount":5}) as before the interruption'
        )
    else:
        assert results == ["paid 5"] * 2


@pytest.mark.parametrize(
    ("effect", "expected"), [("read", "again"), ("once", OutcomeUnknown), ("reconciled", "found")]
)
async def test_a_host_that_stops_leaves_calls_inside_to_the_next(
    world: World, effect: str, expected: Any
) -> None:
    results: list[Any] = []

    async def wait(self: Any) -> str:
        done.append("wait")
        if len(done) == 1:
            await forever()
        return "again"

    async def body(self: Any, call: ToolCall) -> Any:
        try:
            results.append(await current_calls().inside(call, 1, "wait", {}))
        except Exception as error:
            results.append(type(error))
        return "ok"

    options: dict[str, Any] = {"effect": "read" if effect == "read" else "once"}
    if effect == "reconciled":
        options["reconcile"] = lambda call: "found"
    Talker = running(body, wait=tool(**options)(wait))
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").submit_messages("u1")
    await asyncio.sleep(1)
    host = await world.next_life()
    await host.until_settled()
    states = dict(await ledger(host, "id, state"))
    await world.stop()
    assert results == [expected]
    assert states == {"c1": "done", "c1/1": "unknown" if effect == "once" else "done"}


@pytest.mark.parametrize("recovers", [False, True])
def test_calls_inside_one_that_does_not_run_again_get_an_outcome(
    store_url: str, recovers: bool
) -> None:
    """The call around is one of a "once" tool, or its turn is given up: nobody makes its calls again."""
    lives: Lives

    async def act(self: Any, call: ToolCall) -> Any:
        await current_calls().inside(call, 1, "look", {})
        await current_calls().inside(call, 2, "deadly", {})

    async def deadly(self: Any) -> None:
        lives.die()

    answers = (Step.call("act", {}, id="c1"), "Done.")
    members = {"act": tool(effect="once")(act), "deadly": tool(effect="read")(deadly)}
    Talker = running(forever, *answers, chat_recovery=recovers, **members)
    lives = Lives(store_url, Talker)
    states: list[Any] = []

    async def look(host: Host) -> None:
        await host.until_settled()
        states[:] = await ledger(host, "id, state")
        message = (await host.get(Talker, "a").get_messages())[-1]
        states.append(outcomes(message))

    lives.run(asking(Talker))
    lives.run(look)
    assert sorted(states[:3]) == [("c1", "unknown"), ("c1/1", "done"), ("c1/2", "failed")]
    assert states[3] == ["unknown"]
