"""`on_chat_response`: told of every answer, at least once, when the next turn may begin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from conversation import agent_of, answering, inbox, leftovers, rows, said, until

from outlast import CommitFailed, Host, Think, tool
from outlast.agent.agent import parts_of
from outlast.chat.run.response_hook import ResponseHook
from outlast.testing import Step
from support import World, forever

pytestmark = pytest.mark.virtual_time

Act = Callable[["Told", Any, int], Awaitable[None]]


class Told(Think):
    """Its hook notes every answer, and then does what the test says."""

    chat_recovery = False

    log: list[Any] = []
    runs: dict[str, int] = {}
    act: Act | None = None

    async def on_chat_response(self, result: Any) -> None:
        self.log.append(result)
        run = self.runs[result.request_id] = self.runs.get(result.request_id, 0) + 1
        if self.act is not None:
            await self.act(result, run)

    async def note(self, what: str) -> None:
        self.log.append(what)

    async def work(self, fiber: Any, what: str) -> None:
        self.log.append(what)

    @tool
    async def wait(self) -> None:
        await forever()


def told(model: Any, act: Any = None, **members: Any) -> type[Told]:
    return type("Hearing", (Told,), {"model": model, "act": act, "log": [], "runs": {}, **members})


async def due(host: Host) -> list[Any]:
    """What is still to be told, and what was admitted by hooks that may run again."""
    return [*await rows(host, "responses"), *await rows(host, "admissions")]


def texts(Hearing: type[Told]) -> list[tuple[str, str]]:
    return [(result.status, result.message.text) for result in Hearing.log]


# --- when ----------------------------------------------------------------------------------------


@pytest.mark.invariant("D8")
@pytest.mark.parametrize("how", ["save", "chat", "stream", "continue", "regenerate", "stub"])
async def test_the_hook_may_start_a_turn_and_wait_for_it(world: World, how: str) -> None:
    done: list[Any] = []

    async def act(self: Any, result: Any, run: int) -> None:
        if done:
            return
        done.append("begun")
        assert said(self.messages) == ["user: u1", "assistant: one"], "the answer is stored"
        if how == "chat":
            await self.chat("u2", object())
        elif how == "stream":
            assert [chunk["type"] async for chunk in self.stream("u2")][-1] == "finish"
        elif how == "continue":
            assert (await self.continue_last_turn()).status == "completed"
        elif how == "regenerate":
            assert (await self.regenerate()).status == "completed"
        else:
            asked = self if how == "save" else host.get(Hearing, "a")
            assert (await asked.save_messages("u2")).status == "completed"
        done.append(self.messages[-1].text)

    Hearing = told(answering("one", "two"), act)
    host = await world.host(Hearing)
    assert (await host.get(Hearing, "a").save_messages("u1")).message.text == "one"
    await host.until_settled()
    assert leftovers(agent_of(host, Hearing)) == {}
    assert await due(host) == []
    assert [outcome for _, outcome in await inbox(host)] == ["completed"] * 2
    await world.stop()
    assert done[1].endswith("two")
    assert len(Hearing.log) == 2
    assert Hearing.log[1].message.text == done[1]


@pytest.mark.invariant("D8")
async def test_a_slow_hook_holds_up_no_turn_and_is_called_in_the_order_of_the_answers(
    world: World,
) -> None:
    async def act(self: Any, result: Any, run: int) -> None:
        begun.append((result.message.text, len(await inbox(host))))
        await asyncio.sleep(100)
        ended.append(result.message.text)

    begun: list[Any] = []
    ended: list[str] = []
    Hearing = told(answering("one", "two", "three"), act)
    host = await world.host(Hearing)
    loop = asyncio.get_running_loop()
    start = loop.time()
    for n in range(3):
        await host.get(Hearing, "a").save_messages(f"u{n}")
    assert loop.time() - start < 1
    assert [text for text, _ in begun] == ["one"]
    assert ended == []
    await host.until_settled()
    assert 300 <= loop.time() - start < 301
    assert await due(host) == []
    await world.stop()
    assert [text for text, _ in begun] == ended == ["one", "two", "three"]


STATUSES: dict[str, tuple[Any, str, str]] = {
    "completed": ("All.", "completed", "All."),
    "failed": (Step.text("So far ") + Step.fails("rejected"), "error", "So far "),
    "aborted": (Step.text("So far ") + Step.stalls(), "aborted", "So far "),
    "stopped in a tool": (Step.text("So far ") + Step.calls("wait"), "aborted", "So far "),
}


@pytest.mark.parametrize("how", STATUSES)
async def test_the_hook_is_told_how_the_turn_has_ended(world: World, how: str) -> None:
    answer, status, text = STATUSES[how]
    Hearing = told(answering(answer, "Next"))
    host = await world.host(Hearing)
    a = host.get(Hearing, "a")
    submitted = await a.submit_messages("u1")
    await asyncio.sleep(1)
    assert await a.cancel_chat(submitted.id, "enough") == (status == "aborted")
    await host.until_settled()
    await a.continue_last_turn()
    await host.until_settled()
    stored = await a.inspect_submission(submitted.id)
    await world.stop()
    first, second = Hearing.log
    assert (first.request_id, first.status, first.message.text) == (submitted.id, status, text)
    assert (first.status, first.error) == (stored.status, stored.error)
    assert (first.error is None) == (status == "completed")
    assert (first.continuation, second.continuation) == (False, True)
    assert second.message.id == first.message.id


async def test_a_turn_without_an_answer_is_none_to_be_told_of(world: World) -> None:
    fails, blank = Step.fails("rejected"), Step.text("")
    Hearing = told(answering(fails, Step.stalls(), blank, "Hello"))
    host = await world.host(Hearing)
    a = host.get(Hearing, "a")
    assert (await a.continue_last_turn()).status == "skipped"
    assert (await a.save_messages("u1")).status == "error"
    stalled, waiting = await a.submit_messages("u2"), await a.submit_messages("u3")
    await asyncio.sleep(1)
    assert await a.cancel_chat(waiting.id)
    assert await a.cancel_chat(stalled.id)
    assert (await a.save_messages("u4")).message is None
    await a.add_messages("u5")
    await host.until_settled()
    assert Hearing.log == []
    assert await due(host) == []
    await a.save_messages("u6")
    await host.until_settled()
    await world.stop()
    assert texts(Hearing) == [("completed", "Hello")]


async def test_an_answer_that_was_cleared_meanwhile_is_told_to_nobody(world: World) -> None:
    async def act(self: Any, result: Any, run: int) -> None:
        await asyncio.sleep(10)

    Hearing = told(answering("one", "two", "three"), act)
    host = await world.host(Hearing)
    a = host.get(Hearing, "a")
    await a.save_messages("u1")
    await a.save_messages("u2")
    await a.clear_messages()
    await a.save_messages("u3")
    await host.until_settled()
    assert await due(host) == []
    await world.stop()
    assert texts(Hearing) == [("completed", "one"), ("completed", "three")]


# --- at least once -------------------------------------------------------------------------------


async def test_a_hook_that_raises_is_logged_and_the_next_answer_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(self: Any, result: Any, run: int) -> None:
        if result.message.text == "one":
            raise ValueError("no idea")
        if result.message.text == "two":
            raise asyncio.CancelledError

    Hearing = told(answering("one", "two", "three"), act)
    host = await world.host(Hearing)
    for n in range(3):
        assert (await host.get(Hearing, "a").save_messages(f"u{n}")).status == "completed"
    await host.until_settled()
    assert await due(host) == []
    assert leftovers(agent_of(host, Hearing)) == {}
    await world.stop()
    assert [text for _, text in texts(Hearing)] == ["one", "two", "three"]
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in logged] == ["Hearing/a: on_chat_response raised"] * 2


DOES: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "submit": lambda self: self.submit_messages("and then?"),
    "submit twice": lambda self: asyncio.gather(
        self.submit_messages("and then?"), self.submit_messages("and then?")
    ),
    "save": lambda self: self.save_messages("and then?"),
    "add": lambda self: self.add_messages("noted"),
    "schedule": lambda self: self.schedule(30, self.note, "scheduled"),
    "fiber": lambda self: self.start_fiber("work", self.work, "fiber"),
}


@pytest.mark.parametrize("what", DOES)
async def test_a_host_that_dies_in_the_hook_calls_it_again_and_doubles_nothing_that_it_did(
    world: World, what: str
) -> None:
    async def act(self: Any, result: Any, run: int) -> None:
        if result.message.text != "one":
            return
        await DOES[what](self)
        done.append(run)
        if run == 1:
            await forever()

    done: list[int] = []
    Hearing = told(answering("one", "two"), act)
    host = await world.host(Hearing, shutdown_timeout=0)
    await host.get(Hearing, "a").save_messages("u1")
    await until(lambda: done)
    await asyncio.sleep(5)
    before = said(await host.get(Hearing, "a").get_messages())
    assert (await rows(host, "responses", "seq", "seq"))[0] == (1,), "it is not done yet"
    host = await world.next_life()
    await host.until_settled()
    assert done == [1, 2]
    assert said(await host.get(Hearing, "a").get_messages()) == before
    await asyncio.sleep(60)
    await host.until_settled()
    assert await due(host) == []
    await world.stop()
    notes = [each for each in Hearing.log if isinstance(each, str)]
    assert notes == {"schedule": ["scheduled"], "fiber": ["fiber"]}.get(what, [])
    times = [r.message.text for r in Hearing.log if not isinstance(r, str)]
    assert times == ["one", "one", *(["two"] * (len(before) // 2 - 1))]


async def test_what_a_dead_host_came_to_say_is_told_by_the_next(world: World) -> None:
    """Answers behind the one whose hook was running, and what was left of a turn that was not over."""

    async def act(self: Any, result: Any, run: int) -> None:
        if run == 1:
            await forever()

    Hearing = told(answering("one", "two", Step.text("three ") + Step.stalls()), act)
    host = await world.host(Hearing, shutdown_timeout=0)
    a = host.get(Hearing, "a")
    await a.save_messages("u1")
    await a.save_messages("u2")
    await a.submit_messages("u3")
    await asyncio.sleep(1)
    assert texts(Hearing) == [("completed", "one")]
    await world.stop()
    Hearing.act = None
    host = await world.next_life()
    await host.until_settled()
    assert await due(host) == []
    await world.stop()
    assert texts(Hearing)[1:] == [
        ("completed", "one"),
        ("completed", "two"),
        ("interrupted", "three "),
    ]
    host = await world.next_life()
    await host.get(Hearing, "a").get_messages()
    await host.until_settled()
    await world.stop()
    assert len(Hearing.log) == 4, "what was told stays so"


async def test_a_store_that_is_away_for_a_while_only_delays_what_is_to_be_told(
    world: World,
) -> None:
    Hearing = told(answering("one", "two"))
    host = await world.host(Hearing)
    a = host.get(Hearing, "a")
    await a.get_messages()
    responses = parts_of(agent_of(host, Hearing))[ResponseHook]
    commits, failed = responses.commits, []

    class Away:
        async def commit(self, operations: Any) -> Any:
            if len(failed) < 3:
                failed.append(operations)
                raise CommitFailed("the store is away")
            return await commits.commit(operations)

    responses.commits = Away()
    await asyncio.gather(a.save_messages("u1"), a.save_messages("u2"))
    await asyncio.sleep(300)
    assert len(failed) == 3
    assert {result.message.text for result in Hearing.log} == {"one", "two"}
    assert await due(host) == []
