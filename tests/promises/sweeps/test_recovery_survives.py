"""Turns that are taken up after a death, killed at every commit, and again while they are taken up.

Everything is answered whole and once: nothing that was said is lost or said again, and no tool that runs
once runs twice.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from chat_rows import (
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
from recovering_agents import (
    CALLS,
    LOCATE,
    TEXTS,
    THOUGHT,
    Clerk,
    Hasty,
    Listener,
    Talker,
    decided,
    model,
    user,
    watch,
    world,
)

from outlast import Host
from outlast.chat.inbox.origin import AUTO
from outlast.chat.model.beginnings import CONTINUE
from outlast.chat.run.retention import KEEP_STREAMS
from outlast.store.operations import Query
from outlast.testing import Outcome
from support import alarm_rows
from sweeps import crash_sweep

Mode = Literal["commits", "groups", "twice", "thrice"]
MODES: list[Mode] = ["commits", "groups", "twice", "thrice"]

undisturbed: dict[str, int] = {}  # requests to the model, by agent, if nobody dies


def swept(sample: int, postgres: int) -> Any:
    """On SQLite at every point, and at some in the other modes; on PostgreSQL at some."""
    return pytest.mark.parametrize(
        ("mode", "engine", "sample"),
        [(mode, "sqlite", None if mode == "commits" else sample) for mode in MODES]
        + [("commits", "postgresql", postgres), ("thrice", "postgresql", postgres // 2)],
        ids=[*(f"{mode}-sqlite" for mode in MODES), "commits-postgresql", "thrice-postgresql"],
    )


@pytest.fixture
def store(engine: str, request: pytest.FixtureRequest) -> str | None:
    return str(request.getfixturevalue("postgres")) if engine == "postgresql" else None


# --- what must hold ------------------------------------------------------------------------------


def _asks(text: str) -> bool:
    """Whether an instruction to continue is part of what is stored."""
    return CONTINUE in text or "Its end is quoted between the tags" in text


async def until_swept(host: Host, agent: Talker, address: str) -> None:
    """What was seen is in the streams; and when those are gone, it is in the messages."""
    await host.until_settled()
    assert not await agent.is_recovering()
    rows = await stored(host, address)
    due = host.clock.now() - KEEP_STREAMS
    gone = {entry.id for entry in rows.entries if entry.ended_at and entry.ended_at <= due}
    check_seen(rows, world.seen, gone=gone)
    check_answers(rows)
    assert all(not _asks(chunk) for chunks in rows.streams.values() for chunk in chunks)
    await asyncio.sleep(11 * 60)
    await host.until_settled()
    rows = await stored(host, address)
    assert rows.streams == {}, "streams are kept for ten minutes"
    assert await alarm_rows(host) == []
    check_said(rows, world.seen)


async def check_common(outcome: Outcome, address: str, deaths: int) -> Stored:
    host = outcome.host
    rows = await stored(host, address)
    check_all_ended(rows)
    check_tree(rows)
    assert {entry.id for entry in rows.entries} >= world.accepted, "what was accepted is known"
    assert all(not _asks(row.body) for row in rows.messages.values())
    for request in model.requests:
        check_request(request.messages)
        check_calls(request.messages)
    if not deaths:
        undisturbed[address] = len(model.requests)
        assert world.recoveries == []
    assert len(model.requests) <= undisturbed[address] + deaths, "a death costs one request"
    assert len(world.recoveries) <= deaths
    for table in ("incidents", "boots"):
        query = Query.same(f"SELECT count(*) FROM {table} WHERE agent = ?")
        assert (await host.store.fetch(query, address))[0][0] == 0, f"{table} has rows left"
    begun = Query.same("SELECT id FROM calls WHERE agent = ? AND state = 'begun'")
    assert await host.store.fetch(begun, address) == [], "a call has no outcome"
    return rows


def check_calls(messages: list[Any]) -> None:
    """Every call has one result, and every result its call."""
    calls = [
        call.tool_call_id
        for each in messages
        if each.kind == "response"
        for call in each.tool_calls
    ]
    results = [
        part.tool_call_id
        for message in messages
        if message.kind == "request"
        for part in message.parts
        if part.part_kind in ("tool-return", "retry-prompt") and part.tool_call_id
    ]
    assert sorted(calls) == sorted(results)
    assert len(set(calls)) == len(calls)


def check_path(rows: Stored, prompts: list[str], cancelled: set[str]) -> None:
    """Each message with its whole answer behind it, and then the next."""
    path = [row for row in rows.path if row.id != "u-note"]
    expected = [kind for prompt in prompts for kind in (f"u-{prompt}", "assistant")]
    found = [row.id if row.role == "user" else row.role for row in path]
    if cancelled:  # it may have been stopped before it has said anything
        assert found in (expected, [*expected[:-1]])
    else:
        assert found == expected
    for asked, row in zip(path, path[1:], strict=False):
        if row.role == "assistant":
            prompt = asked.id.removeprefix("u-")
            if prompt in cancelled:
                assert TEXTS[prompt].startswith(row.text)
            else:
                assert row.text == TEXTS[prompt]
            if prompt not in CALLS:
                kinds = [part["type"] for part in row.message["parts"]]
                assert kinds.count("step-start") == 1, "it goes on in the middle of its step"
                assert kinds.count("text") <= 1, "and of its text"
            check_thoughts(row.message)


def check_thoughts(message: dict[str, Any]) -> None:
    """Thoughts that were interrupted are beginnings; the last one is whole."""
    thoughts = [part for part in message["parts"] if part["type"] == "reasoning"]
    for thought in thoughts[:-1]:
        assert THOUGHT.startswith(thought["text"])
    for thought in thoughts[-1:]:
        assert thought["text"] == THOUGHT


# --- a conversation ------------------------------------------------------------------------------

TALK = ["one", "two", "three", "stop"]


async def converse(host: Host) -> None:
    """All kinds of turns. What was accepted in an earlier life is not asked again."""
    agent = host.get(Talker, "t")
    async with asyncio.TaskGroup() as side:
        for entry in await agent.open_requests():
            side.create_task(watch(agent, entry.id))  # somebody who reconnects
        if not await agent.knows("u-stop"):
            await host.until_settled()  # the user waits for what was interrupted
        await agent.remind()
        if not await agent.knows("u-one"):
            one = Listener(enough=4)
            side.create_task(agent.chat(user("one"), one))
            await one.begun.wait()
            side.create_task(watch(agent, one.request))
            await one.heard_enough.wait()
            side.create_task(watch(agent, one.request, after=2))
        if not await agent.knows("u-two"):
            two = Listener()
            side.create_task(agent.chat(user("two"), two))
            await two.begun.wait()
        while not await agent.knows("u-note"):  # or it is the last message, and nothing of three's
            await asyncio.sleep(0.01)
        three = await agent.submit_messages(user("three"), idempotency_key="three")
        world.accepted.add(three.id)
        side.create_task(watch(agent, three.id))
    if not await agent.count("regenerate"):
        await host.until_settled()
        world.accepted.add((await agent.regenerate()).request_id)
    if not await agent.knows("u-stop"):
        await host.until_settled()
    stopping = await agent.submit_messages(user("stop"), idempotency_key="stop")
    world.accepted.add(stopping.id)
    heard = 0
    async for seq, chunk in agent.follow(stopping.id):
        assert seq == heard
        world.seen.saw(stopping.id, seq, chunk)
        heard += 1
        if heard == 5 and await agent.cancel_chat(stopping.id, "enough"):
            world.cancelled_at.append(len(model.requests))
    await until_swept(host, agent, "Talker/t")


async def check_conversation(outcome: Outcome) -> None:
    deaths = len(outcome.deaths)
    agent = outcome.host.get(Talker, "t")
    rows = await check_common(outcome, "Talker/t", deaths)
    assert [each.raw for each in await agent.get_messages()] == [row.message for row in rows.path]
    assert [row.id for row in rows.path].count("u-note") == 1
    stop = next(entry for entry in rows.entries if entry.key == "stop")
    check_path(rows, TALK, {"stop"} if stop.outcome == "aborted" else set())
    others = [entry.outcome for entry in rows.entries if entry is not stop]
    assert others == ["completed"] * len(others), others
    regenerated = [row for row in rows.messages.values() if row.parent == "u-three"]
    assert [row.text for row in regenerated] == [TEXTS["three"]] * 2
    asked = [
        [prompt for prompt in prompts_of(request.messages) if prompt != "note"]
        for request in model.requests
    ]
    assert all(each == TALK[: len(each)] for each in asked), "each prompt once, in order"
    if world.cancelled_at:
        assert stop.outcome == "aborted"
        assert len(model.requests) == world.cancelled_at[0], "nothing is asked after a cancel"
    if not deaths:
        assert stop.outcome == "aborted"


@pytest.mark.invariant("C1", "C3", "C4", "H3", "D10")
@swept(sample=24, postgres=6)
async def test_a_conversation(mode: Mode, store: str | None, sample: int | None) -> None:
    decided.clear()
    report = await crash_sweep(
        agents=[Talker],
        drive=converse,
        check=check_conversation,
        reset=world.forget,
        mode=mode,
        store=store,
        sample=sample,
        outside=world.outside(),
    )
    assert report.commits >= 40
    assert report.deaths >= (sample or 2 * report.commits)
    if sample is None:
        assert decided >= {1, 4, 14, 15, 17, 19}, "every kind of interruption was met"


# --- turns with tools ----------------------------------------------------------------------------

WORK = ["work", "two", "ask", "four"]


async def work(host: Host) -> None:
    """Tools of every kind, side by side, messages that wait, and a user who answers what is open."""
    agent = host.get(Clerk, "c")
    async with asyncio.TaskGroup() as side:
        for entry in await agent.open_requests():
            if entry.state == "running":
                side.create_task(watch(agent, entry.id))
        await host.until_settled()
        await answer_open(host, agent)  # who says something else instead has moved on
        first = await agent.submit_messages(user("work"), idempotency_key="work")
        side.create_task(watch(agent, first.id))
        second = await agent.submit_messages(user("two"), idempotency_key="two")
        world.accepted |= {first.id, second.id}
    await host.until_settled()
    asking = await agent.submit_messages(user("ask"), idempotency_key="ask", client_tools=[LOCATE])
    last = await agent.submit_messages(user("four"), idempotency_key="four")
    world.accepted |= {asking.id, last.id}
    await host.until_settled()
    await answer_open(host, agent)
    await until_swept(host, agent, "Clerk/c")


async def answer_open(host: Host, agent: Clerk) -> None:
    for message in await agent.get_messages():
        for part in message.parts:
            if part.get("state") == "approval-requested":
                await agent.add_tool_approval(part["toolCallId"], True)
            elif part.get("state") == "input-available":
                await agent.add_tool_output(part["toolCallId"], {"lat": 1})
    await host.until_settled()


def tool_parts(rows: Stored, name: str) -> list[dict[str, Any]]:
    parts = [part for row in rows.messages.values() for part in row.message["parts"]]
    return [part for part in parts if part["type"] == f"tool-{name}"]


def outcome_of(part: dict[str, Any]) -> str:
    if part["state"] == "output-available":
        return "done"
    assert part["state"] == "output-error", part
    outcome = part.get("resultProviderMetadata", {}).get("outlast", {}).get("outcome")
    return "unknown" if outcome == "unknown" else "failed"


async def check_work(outcome: Outcome) -> None:
    deaths = len(outcome.deaths)
    agent = outcome.host.get(Clerk, "c")
    rows = await check_common(outcome, "Clerk/c", deaths)
    assert not await agent.has_pending_interaction()
    check_path(rows, WORK, set())
    assert {entry.outcome for entry in rows.entries} == {"completed"}
    assert [entry.origin for entry in rows.entries].count(AUTO) == 1, "one continuation a batch"
    done = {"mail": world.mails, "book": world.books, "pay": world.payments}
    done["delete"] = world.deletions
    for name, effects in done.items():
        outcomes = [outcome_of(part) for part in tool_parts(rows, name)]
        assert len(effects) <= 1, f"{name} happened twice"
        if "done" in outcomes:
            assert len(effects) == 1, f"{name} is said to have happened"
        elif "unknown" not in outcomes:
            assert effects == [], f"{name} is said not to have happened: {outcomes}"
        assert outcomes.count("unknown") <= (2 if name == "book" else 1) * min(deaths, 1)
        if not deaths:
            assert set(outcomes) == {"done"}
    assert len(world.payments) == 1, "what can be found out is not left open"
    assert 1 <= len(world.looks) <= 1 + deaths
    for request in model.requests:
        prompts = prompts_of(request.messages)
        assert prompts == WORK[: len(prompts)]


@pytest.mark.invariant("I2", "I8", "H3")
@swept(sample=24, postgres=6)
async def test_turns_with_every_kind_of_tool(
    mode: Mode, store: str | None, sample: int | None
) -> None:
    decided.clear()
    report = await crash_sweep(
        agents=[Clerk],
        drive=work,
        check=check_work,
        reset=world.forget,
        mode=mode,
        store=store,
        sample=sample,
        outside=world.outside(),
    )
    assert report.commits >= 40
    assert report.deaths >= (sample or 2 * report.commits)
    if sample is None:
        assert decided >= {1, 11, 14, 15, 17, 18, 19}, "every kind of interruption was met"


# --- a user who does not wait --------------------------------------------------------------------


async def move_on(host: Host) -> None:
    """The next message comes at once, whatever has become of the answer before it."""
    agent = host.get(Hasty, "t")
    async with asyncio.TaskGroup() as side:
        if not await agent.knows("u-one"):
            one = Listener(enough=11)  # in the middle of the text
            side.create_task(agent.chat(user("one"), one))
            await one.heard_enough.wait()
        two = await agent.submit_messages(user("two"), idempotency_key="two")
        world.accepted.add(two.id)
        side.create_task(watch(agent, two.id))
    await until_swept(host, agent, "Hasty/t")


async def check_moved_on(outcome: Outcome) -> None:
    rows = await check_common(outcome, "Hasty/t", len(outcome.deaths))
    first, second = rows.entries
    assert (first.outcome, second.outcome) in (("completed",) * 2, ("skipped", "completed"))
    if first.outcome == "completed":
        check_path(rows, ["one", "two"], set())
        return
    assert outcome.deaths
    path = rows.path
    assert [row.id for row in path if row.role == "user"] == ["u-one", "u-two"]
    assert len(path) == 4, "what was said is kept"
    assert TEXTS["one"].startswith(path[1].text)
    assert path[3].text == TEXTS["two"]
    skipped.append(path[1].text)


skipped: list[str] = []


@pytest.mark.parametrize("mode", ["commits", "thrice"])
async def test_a_user_who_moves_on(mode: Mode) -> None:
    skipped.clear()
    decided.clear()
    await crash_sweep(
        agents=[Hasty],
        drive=move_on,
        check=check_moved_on,
        reset=world.forget,
        mode=mode,
        outside=world.outside(),
    )
    assert any(skipped), "an answer was left where it was"
    assert 21 in decided


# --- a user who clears everything ----------------------------------------------------------------


async def clear(host: Host) -> None:
    """In the middle of an answer, or while it is being found out what becomes of it."""
    agent = host.get(Talker, "t")
    if not await agent.knows("u-two"):
        async with asyncio.TaskGroup() as side:
            if not await agent.knows("u-stop"):
                first = Listener(enough=5)
                side.create_task(agent.chat(user("stop"), first))
                await first.heard_enough.wait()
            await agent.clear_messages()
        world.seen.clear()
        await agent.submit_messages(user("two"), idempotency_key="two")
    await until_swept(host, agent, "Talker/t")


async def check_cleared(outcome: Outcome) -> None:
    rows = await stored(outcome.host, "Talker/t")
    check_all_ended(rows)
    check_tree(rows)
    check_path(rows, ["two"], set())
    assert len(rows.messages) == 2
    for request in model.requests:
        check_request(request.messages)


@pytest.mark.parametrize("mode", ["commits", "thrice"])
async def test_a_user_who_clears_everything(mode: Mode) -> None:
    await crash_sweep(
        agents=[Talker],
        drive=clear,
        check=check_cleared,
        reset=world.forget,
        mode=mode,
        outside=world.outside(),
    )
