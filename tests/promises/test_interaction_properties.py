"""Any order of answers, questions and second thoughts, with deaths in between, on virtual time."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from chat_rows import (
    MessageRow,
    Seen,
    Stored,
    check_all_ended,
    check_answers,
    check_request,
    check_seen,
    check_tree,
    prompts_of,
    stored,
)
from conversation import agent_of, followed, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from interacting import LOCATE
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import StreamedResponse

from outlast import Host, Think, ToolCall, tool
from outlast.agent.agent import parts_of
from outlast.agent.state.facts import Facts
from outlast.chat.inbox.origin import AUTO
from outlast.chat.message.repair import open_calls
from outlast.chat.model.beginnings import asks_to_continue
from outlast.chat.turn.pending import PendingCalls
from outlast.core.errors import OutlastError
from outlast.testing import Death, ScriptedModel, Step
from outlast.testing.death import Life
from outlast.testing.virtual import START

AGENT = "Talker/t"
# What a prompt makes the model call, batch after batch: the client's tool, a payment, a look.
SHAPES = ("c", "p", "cc", "cp", "cpl", "c|p", "p|c|c", "pp|l|c", "")
TOOLS = {"c": "locate", "p": "pay", "l": "look"}
NO_TOOL = "There is no tool"

numbers = count()
paid: list[str] = []  # the world outside: the calls that were paid


def answer(messages: list[ModelMessage]) -> Step:
    """The next batch that the last prompt asks for; each call has an id that no other ever has."""
    name, _, shape = prompts_of(messages)[-1].partition(" ")
    done = 0
    for message in messages:
        is_prompt = any(
            part.part_kind == "user-prompt" and not asks_to_continue(part.content)
            for part in message.parts
        )
        if message.kind == "response":
            done += bool(message.tool_calls)
        elif is_prompt:
            done = 0
    batches = shape.split("|") if shape else []
    if done >= len(batches):
        return Step.text(f"To {name}.", delay=0.1)
    step = Step.text("Hm. ", delay=0.1)
    for kind in batches[done]:
        step += Step.call(TOOLS[kind], {}, id=f"{TOOLS[kind]}-{next(numbers)}")
    return step + Step.text("Well.", delay=0.1)


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

    @tool(needs_approval=True)
    async def pay(self, call: ToolCall) -> str:
        """Pay."""
        assert call.approved
        paid.append(call.id)
        await asyncio.sleep(0.1)
        return f"paid {call.id}"

    @tool(effect="read")
    async def look(self) -> str:
        """Look."""
        await asyncio.sleep(0.2)
        return "seen"

    async def open(self) -> list[dict[str, Any]]:
        return parts_of(self)[PendingCalls].pending

    async def follow(self, request: str) -> AsyncIterator[tuple[int, str]]:
        async for item in followed(self, request, may_be_gone=True):
            yield item


@dataclass(frozen=True)
class Attempt:
    """An answer that somebody has given; whether it counted is another matter."""

    call: str
    opts: bool
    approves: bool | None  # None: it was a result


@dataclass
class World:
    """What is known outside, which outlasts the hosts."""

    seen: Seen = field(default_factory=Seen)
    attempts: dict[str, Attempt] = field(default_factory=dict)  # by what was said
    counted: dict[str, str] = field(default_factory=dict)  # what was said first, by the call
    accepted: list[str] = field(default_factory=list)
    cleared: set[str] = field(default_factory=set)
    continued: int = 0  # by hand
    asked: int = 0
    failures: list[BaseException] = field(default_factory=list)

    async def act(self, host: Host, what: str, number: int, side: set[asyncio.Task[Any]]) -> None:
        agent = host.get(Talker, "t")
        match what:
            case "wait":
                await asyncio.sleep(number * 0.09)
            case "ask":
                self.asked += 1
                text = f"m{self.asked} {SHAPES[number]}".strip()
                found = await agent.submit_messages(text, client_tools=[LOCATE])
                self.accepted.append(found.id)
                self._aside(side, lambda: self._follow(agent, found.id))
            case "answer":
                for part in (await self._open(agent, number))[: 1 + number % 2]:
                    await self.answer(agent, part["toolCallId"], part["state"], number)
            case "answer all":
                asking = [
                    self.answer(agent, part["toolCallId"], part["state"], number + place)
                    for place, part in enumerate((await self._open(agent, number)) * 2)
                ]
                await asyncio.gather(*asking)
            case "answer and leave":
                for part in (await self._open(agent, number))[:1]:
                    giving = self.answer(agent, part["toolCallId"], part["state"], number)
                    task = asyncio.ensure_future(giving)
                    for _ in range(number % 5):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            case "repeat":
                known = [attempt.call for attempt in self.attempts.values()] or ["nothing"]
                id = known[number % len(known)] if number else "nothing"
                state = "approval-requested" if id.startswith("pay") else "input-available"
                await self.answer(agent, id, state, number)
            case "cancel":
                entries = (await stored(host, AGENT)).entries
                if entries:
                    await agent.cancel_chat(entries[-1 - number % len(entries)].id)
            case "regenerate":
                self._aside(side, agent.regenerate)
            case "continue":
                self.continued += 1
                self._aside(side, agent.continue_last_turn)
            case "select":
                messages = await agent.get_messages()
                if messages:
                    branches = await agent.get_branches(messages[-1 - number % len(messages)].id)
                    if branches:
                        await agent.select_branch(branches[number % len(branches)].id)
            case "add":
                self.asked += 1
                await agent.add_messages(f"n{self.asked}")
            case "clear":
                self.cleared |= {entry.id for entry in (await stored(host, AGENT)).entries}
                await agent.clear_messages()
            case "reset":
                await agent.reset_turns()

    async def _open(self, agent: Any, patience: int) -> list[dict[str, Any]]:
        for _ in range(patience):
            if await agent.open():
                break
            await asyncio.sleep(0.1)
        found: list[dict[str, Any]] = await agent.open()
        return found

    async def answer(self, agent: Any, call: str, state: str, number: int) -> None:
        """Each answer says something that no other one says."""
        said = f"answer {len(self.attempts)}"
        opts = number % 3 > 0
        is_error = number % 4 == 3
        if state == "approval-requested" and not is_error:
            approves: bool | None = number % 4 != 2
            self.attempts[said] = Attempt(call, opts, approves)
            giving = agent.add_tool_approval(call, approves, reason=said, auto_continue=opts)
        else:
            approves = False if state == "approval-requested" else None
            self.attempts[said] = Attempt(call, opts, approves)
            what = {"error_text": said} if is_error else {"output": said}
            giving = agent.add_tool_output(call, **what, auto_continue=opts)
        if await giving:
            assert call not in self.counted, f"{call} has two answers"
            self.counted[call] = said

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


# --- what must hold ------------------------------------------------------------------------------


def said_of(part: dict[str, Any]) -> str | None:
    """What a call that somebody has to answer was answered with."""
    if part["type"] == "tool-pay":
        approval = part.get("approval") or {}
        return approval.get("reason") if "approved" in approval else None
    found = part.get("output") if part["state"] == "output-available" else part.get("errorText")
    return found if isinstance(found, str) else None


def batches_of(message: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The calls of each step that are somebody else's to answer."""
    batches: list[list[dict[str, Any]]] = []
    for part in message["parts"]:
        if part["type"] == "step-start":
            batches.append([])
        elif part["type"] in ("tool-locate", "tool-pay") and not _is_unknown(part):
            batches[-1].append(part)
    return [batch for batch in batches if batch]


def _is_unknown(part: dict[str, Any]) -> bool:
    """A client's tool that nobody offers any more."""
    return bool(part.get("errorText", "").startswith(NO_TOOL))


def check_calls(rows: Stored, world: World) -> None:
    """A call has the answer that was given first, or none at all; what was denied was not paid."""
    assert len(paid) == len(set(paid)), "paid twice"
    parts = [
        part
        for row in rows.messages.values()
        for batch in batches_of(row.message)
        for part in batch
    ]
    ids = [part["toolCallId"] for part in parts]
    assert len(ids) == len(set(ids))
    for part in parts:
        id, said = part["toolCallId"], said_of(part)
        if id in world.counted:
            assert said == world.counted[id], f"{id} was told {world.counted[id]}, and has {part}"
        attempt = world.attempts.get(said or "")
        if attempt is None:
            assert id not in paid, "nobody has allowed it"
            continue
        assert attempt.call == id
        if part["type"] == "tool-pay":
            assert part["approval"]["approved"] is attempt.approves
            assert (part["state"] == "output-denied") is not attempt.approves
        if part["state"] == "output-denied":
            assert id not in paid
        if part["state"] == "output-available" and part["type"] == "tool-pay":
            assert (part["output"], id in paid) == (f"paid {id}", True)


def check_continuations(rows: Stored, world: World, *, is_exact: bool) -> None:
    """One for each batch that was answered whole and wants it, and no other."""
    for row in rows.messages.values():
        if row.role != "assistant":
            continue
        due = 0
        for batch in batches_of(row.message):
            found = [world.attempts.get(said_of(part) or "") for part in batch]
            due += all(found) and any(attempt.opts for attempt in found if attempt)
        turns = [entry for entry in rows.entries if row.id in (entry.message_id, entry.target)]
        made = [entry for entry in turns if entry.origin == AUTO]
        assert len(made) <= due, f"{row.id} went on too often: {row.message}"
        others = [entry for entry in turns if entry.message_id == row.id]
        if is_exact and all(entry.outcome == "completed" for entry in others):
            assert len(made) == due, f"{row.id} did not go on: {row.message}"
    asked: dict[str, int] = {}
    for request in model.requests:
        check_request(request.messages)
        last = request.messages[-1].parts
        if all(part.part_kind == "tool-return" for part in last):
            key = " ".join(sorted(part.tool_call_id for part in last))
            asked[key] = asked.get(key, 0) + 1
    assert max(asked.values(), default=0) <= 1 + world.continued, "the same results twice"


def check_waiting(rows: Stored) -> None:
    """What has not ended waits for a call that is open."""
    for entry in rows.entries:
        if entry.state != "ended":
            assert entry.state == "accepted", entry
            assert rows.path, f"{entry} waits for nothing"
            assert open_calls(rows.path[-1].message), f"{entry} waits for nothing"


def with_calls_closed(rows: Stored) -> Stored:
    """On a branch that was left, calls may be open for ever."""

    def closed(row: MessageRow) -> MessageRow:
        message = row.message
        for part in message["parts"]:
            if part.get("state") == "input-available":
                part["state"] = "output-error"
        return replace(row, body=json.dumps(message))

    return replace(rows, messages={id: closed(row) for id, row in rows.messages.items()})


async def check_memory(host: Host) -> None:
    """What the agent has in memory is what is stored: messages, and facts."""
    await host.get(Talker, "t").get_messages()
    for _ in range(100):  # it may be about to be told what it has stored
        found = await stored(host, AGENT)
        check_tree(with_calls_closed(found))
        agent = agent_of(host, Talker, "t")
        facts = [each for each in await rows(host, "facts", "name, value") if each[1] != "null"]
        known = sorted(each for each in parts_of(agent)[Facts]._stored.items() if each[1] != "null")
        shown = [message.raw for message in agent.messages]
        if (shown, known) == ([row.message for row in found.path], facts):
            return
        await asyncio.sleep(0)
    assert known == facts
    assert shown == [row.message for row in found.path]


async def check(host: Host, world: World, *, is_exact: bool) -> None:
    rows = await stored(host, AGENT)
    void = {e.id for e in rows.entries if e.error == "the conversation was cleared"}
    for entry in rows.entries:
        assert entry.outcome != "error", entry.error
    # What goes on by itself goes before what was asked earlier.
    check_answers(replace(rows, entries=sorted(rows.entries, key=lambda e: e.started_at or 0)))
    check_seen(rows, world.seen, gone=void | world.cleared)
    check_calls(rows, world)
    check_continuations(rows, world, is_exact=is_exact)
    await check_memory(host)
    assert world.failures == []


async def check_end(host: Host, world: World, *, is_exact: bool) -> None:
    """At the end somebody answers everything, and nothing is left."""
    agent = host.get(Talker, "t")
    for number in range(1, 100):
        await host.until_settled()
        await check(host, world, is_exact=is_exact)
        rows = await stored(host, AGENT)
        check_waiting(rows)
        pending = await agent.open()
        waits = any(entry.state != "ended" for entry in rows.entries)
        assert await agent.wait_until_stable(timeout=0) == (not pending and not waits)
        if not pending:
            break
        for part in pending:
            await world.answer(agent, part["toolCallId"], part["state"], number)
    rows = await stored(host, AGENT)
    check_all_ended(rows)
    assert not await agent.has_pending_interaction()


# --- any order -----------------------------------------------------------------------------------

ANSWERS = ("ask", "ask", "answer", "answer", "answer all", "answer and leave", "repeat", "cancel")
CHANGES = ("clear", "regenerate", "select", "add", "continue", "reset")
DEATHS = st.none() | st.builds(Death, st.integers(1, 40), st.sampled_from(["before", "after"]))
Together = list[tuple[str, int]]
Lives = list[tuple[list[Together], Death | None]]


def lives(kinds: tuple[str, ...]) -> st.SearchStrategy[Lives]:
    operations = st.tuples(st.sampled_from(kinds), st.integers(0, 8))
    together = st.lists(operations, min_size=1, max_size=3)  # done at the same time
    return st.lists(st.tuples(st.lists(together, max_size=7), DEATHS), min_size=1, max_size=3)


@pytest.mark.invariant("I1", "J1", "J2", "J3", "J4", "J7")
@settings(max_examples=150)
@given(given_lives=lives((*ANSWERS, "wait", "wait")))
def test_any_order_of_questions_and_answers(given_lives: Lives) -> None:
    run(given_lives, is_exact=True)


@pytest.mark.invariant("I1", "J1", "J3")
@settings(max_examples=150)
@given(given_lives=lives((*ANSWERS, *CHANGES, "wait")))
def test_any_order_of_answers_and_second_thoughts(given_lives: Lives) -> None:
    run(given_lives, is_exact=False)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Deaths are loud."""
    logger = logging.getLogger("outlast")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def run(given_lives: Lives, *, is_exact: bool) -> None:
    global numbers
    world = World()
    model.requests.clear()
    paid.clear()
    numbers = count()
    start = START
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        url = f"sqlite:///{folder}/store.db?synchronous=off"
        for number, (operations, death) in enumerate(given_lives, 1):
            start = live(world, url, number, operations, death, start)
        live(world, url, len(given_lives) + 1, [], None, start, is_exact=is_exact)


def live(
    world: World,
    url: str,
    number: int,
    operations: list[Together],
    death: Death | None,
    start: int,
    *,
    is_exact: bool | None = None,
) -> int:
    """One life. It ends with its death, or the host stops, with whatever is running then."""

    async def drive(host: Host) -> None:
        side: set[asyncio.Task[Any]] = set()
        for together in operations:
            await asyncio.gather(*(world.act(host, *operation, side) for operation in together))
            await check_memory(host)
        if is_exact is not None:  # the last one
            await check_end(host, world, is_exact=is_exact)
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
