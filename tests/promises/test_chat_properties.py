"""Any order of everything that can be done to a chat agent, with deaths in between, on virtual time."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chat_rows import (
    Seen,
    Stored,
    check_all_ended,
    check_answers,
    check_request,
    check_said,
    check_seen,
    check_tree,
    prompts_of,
    stored,
)
from conversation import agent_of, followed
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import StreamedResponse

from outlast import Host, Think
from outlast.core.errors import OutlastError
from outlast.testing import Death, ScriptedModel, Step
from outlast.testing.death import Life
from outlast.testing.virtual import START
from support import alarm_rows

AGENT = "Talker/t"
CLEARED = "the conversation was cleared"
TEXT = "One two three."
Together = list[tuple[str, int]]


def answer(messages: list[ModelMessage]) -> Step:
    thought = Step.reasoning("Hm.", delay=0.1)
    return thought + Step.text(f"To {prompts_of(messages)[-1]}: {TEXT}", delay=0.1)


class Jealous(ScriptedModel):
    """Bears no second request at the same time."""

    busy = 0

    @asynccontextmanager
    async def request_stream(self, *arguments: Any) -> AsyncGenerator[StreamedResponse]:
        assert self.busy == 0, "two requests at a time"
        self.busy += 1
        try:
            async with super().request_stream(*arguments) as stream:
                yield stream
        finally:
            self.busy -= 1


model = Jealous(answer, repeat=True)


class Talker(Think):
    chat_recovery = False
    model = model

    async def follow(self, request: str) -> AsyncIterator[tuple[int, str]]:
        async for item in followed(self, request, may_be_gone=True):
            yield item


@dataclass
class World:
    """What is known outside, which outlasts the hosts."""

    seen: Seen = field(default_factory=Seen)
    accepted: list[str] = field(default_factory=list)  # request ids that somebody was told
    cleared: set[str] = field(default_factory=set)  # requests that may have been cleared away
    asked: int = 0
    failures: list[BaseException] = field(default_factory=list)

    # --- what can be done ------------------------------------------------------------------------

    async def act(self, host: Host, what: str, number: int, side: set[asyncio.Task[Any]]) -> None:
        agent = host.get(Talker, "t")
        match what:
            case "wait":
                await asyncio.sleep(number * 0.07)
            case "submit":
                self.asked += 1
                key = f"key {number}" if number % 2 else None
                found = await agent.submit_messages(f"s{self.asked}", idempotency_key=key)
                self.accepted.append(found.id)
                self._aside(side, lambda: self._follow(agent, found.id))
            case "save":
                self.asked += 1
                text = f"m{self.asked}"
                self._aside(side, lambda: agent.save_messages(text))
            case "chat":
                self.asked += 1
                text = f"c{self.asked}"
                self._aside(side, lambda: agent.chat(text, _Caller(self)))
            case "regenerate":
                target = await self._message(agent, number)
                self._aside(side, lambda: agent.regenerate(target))
            case "continue":
                self._aside(side, agent.continue_last_turn)
            case "cancel":
                if self.accepted:
                    await agent.cancel_chat(self.accepted[-1 - number % len(self.accepted)])
            case "select":
                message = await self._message(agent, number)
                if message is not None:
                    await agent.select_branch(message)
            case "add":
                self.asked += 1
                await agent.add_messages(f"n{self.asked}")
            case "clear":
                known = {entry.id for entry in (await stored(host, AGENT)).entries}
                self.cleared |= known
                await agent.clear_messages()
            case "reset":
                await agent.reset_turns()
            case "exchange":
                self.asked += 1
                with suppress(OutlastError):  # it may be cut short by another operation
                    await agent.save_messages(f"x{self.asked}")

    def _aside(self, side: set[asyncio.Task[Any]], work: Callable[[], Any]) -> None:
        side.add(asyncio.ensure_future(self._minded(work)))

    async def _minded(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except OutlastError:
            pass  # the agent or the host is over
        except Exception as error:
            self.failures.append(error)

    async def _follow(self, agent: Any, request: str) -> None:
        at = 0
        async for seq, chunk in agent.follow(request):
            assert seq == at
            self.seen.saw(request, seq, chunk)
            at += 1

    async def _message(self, agent: Any, number: int) -> str | None:
        """Some message of the conversation, or one beside it."""
        messages = await agent.get_messages()
        if not messages or number == 0:
            return None
        one = messages[-(number % len(messages)) - 1]
        branches = await agent.get_branches(one.id)
        return str(branches[number % len(branches)].id) if branches else None


class _Caller:
    def __init__(self, world: World) -> None:
        self._world = world
        self._request = ""
        self._count = 0

    def on_start(self, event: dict[str, str]) -> None:
        self._request = event["request_id"]
        self._world.accepted.append(self._request)

    def on_event(self, chunk: str) -> None:
        self._world.seen.saw(self._request, self._count, chunk)
        self._count += 1


# --- what must hold ------------------------------------------------------------------------------


async def check(host: Host, world: World) -> None:
    rows = await stored(host, AGENT)
    check_all_ended(rows)
    check_tree(rows)
    void = {entry.id for entry in rows.entries if entry.seq <= _cleared(rows)}
    check_answers(rows)
    check_seen(rows, world.seen, gone=void | world.cleared)
    check_said(rows, world.seen, gone=void | world.cleared)
    assert void.isdisjoint(rows.streams)
    assert set(world.accepted) <= {entry.id for entry in rows.entries}
    for entry in rows.entries:
        if entry.id not in void:
            assert entry.outcome != "error", entry.error
    for request in model.requests:
        check_request(request.messages)
    _check_path(rows)
    await check_memory(host)
    assert world.failures == []


async def check_memory(host: Host) -> None:
    """What the agent has in memory is what is stored."""
    await host.get(Talker, "t").get_messages()
    for _ in range(100):  # it may be about to be told what it has stored
        rows = await stored(host, AGENT)
        check_tree(rows)
        shown = [message.raw for message in agent_of(host, Talker, "t").messages]
        if shown == [row.message for row in rows.path]:
            return
        await asyncio.sleep(0)
    assert shown == [row.message for row in rows.path]


def _cleared(rows: Stored) -> int:
    return max((entry.seq for entry in rows.entries if entry.error == CLEARED), default=0)


def _check_path(rows: Stored) -> None:
    """Every answer stands right under what it answers; no two answers follow one another."""
    path = rows.path
    for before, row in zip([None, *path], path, strict=False):
        if row.role != "assistant":
            continue
        assert before is not None
        assert before.role == "user", "an answer follows a message of a user"
        asked = before.message["parts"][0]["text"]
        whole = f"To {asked}: {TEXT}"
        text = row.text
        assert whole.startswith(text) or text.startswith(f"To {asked}"[: len(text)]), text


KINDS = ("submit", "save", "chat", "exchange", "exchange", "wait", "wait", "regenerate")
MORE_KINDS = ("continue", "cancel", "select", "add", "clear", "reset")
OPERATIONS = st.tuples(st.sampled_from(KINDS + MORE_KINDS), st.integers(0, 5))
TOGETHER = st.lists(OPERATIONS, min_size=1, max_size=3)  # done at the same time
DEATHS = st.none() | st.builds(Death, st.integers(1, 40), st.sampled_from(["before", "after"]))
LIVES = st.lists(st.tuples(st.lists(TOGETHER, max_size=6), DEATHS), min_size=1, max_size=3)


@pytest.mark.invariant("D1")
@settings(max_examples=120)
@given(lives=LIVES)
def test_any_order_of_everything(lives: list[tuple[list[Together], Death | None]]) -> None:
    world = World()
    model.requests.clear()
    start = START
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        url = f"sqlite:///{folder}/store.db?synchronous=off"
        for number, (operations, death) in enumerate(lives, 1):
            start = live(world, url, number, operations, death, start)
        live(world, url, len(lives) + 1, [], None, start, is_last=True)


def live(
    world: World,
    url: str,
    number: int,
    operations: list[Together],
    death: Death | None,
    start: int,
    *,
    is_last: bool = False,
) -> int:
    """One life. It ends with its death; without one the host stops, with whatever is running then."""

    async def drive(host: Host) -> None:
        side: set[asyncio.Task[Any]] = set()
        for together in operations:
            await asyncio.gather(*(world.act(host, *operation, side) for operation in together))
            await check_memory(host)
        if is_last:
            await host.until_settled()
            await check(host, world)
            await asyncio.sleep(21 * 60)
            await host.until_settled()
            assert (await stored(host, AGENT)).streams == {}
            assert await alarm_rows(host) == []
        for task in side:
            task.cancel()  # whoever waits; the turns go on until the host goes away
        await asyncio.gather(*side, return_exceptions=True)

    model.busy = 0
    options = {"shutdown_timeout": 0}
    one = Life([Talker], url, number=number, death=death, start=start, host_options=options)
    one.run(drive)
    return one.next_start


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Deaths are loud."""
    logger = logging.getLogger("outlast")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)
