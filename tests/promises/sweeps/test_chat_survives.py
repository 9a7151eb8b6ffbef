"""A conversation, killed at every commit: what was seen stays, what was accepted ends, in its order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from chat_rows import (
    Seen,
    Stored,
    check_all_ended,
    check_answers,
    check_request,
    check_requests,
    check_said,
    check_seen,
    check_tree,
    prompts_of,
    stored,
)
from conversation import followed
from pydantic_ai.messages import ModelMessage

from outlast import Host, Think, tool
from outlast.agent.agent import parts_of
from outlast.chat.model.beginnings import asks_to_continue
from outlast.chat.run.retention import KEEP_STREAMS
from outlast.store.operations import Query
from outlast.testing import Outcome, ScriptedModel, Step
from outlast.testing.scripted import turn_position
from support import alarm_rows
from sweeps import crash_sweep

Mode = Literal["commits", "groups", "twice"]
MODES: list[Mode] = ["commits", "groups", "twice"]
AGENT = "Talker/t"
CLEARED = "the conversation was cleared"
PROMPTS = ["one", "two", "three", "look", "stop"]  # in the order in which they are asked
TEXTS = {
    "one": "The answer to one.",
    "two": "To two.",
    "three": "And to three.",
    "look": "I look.It is there.",
    "stop": "This one never comes to its end.",
}
MORE = " And more."

seen = Seen()
accepted: set[str] = set()  # requests that somebody was told to be accepted
cancelled_at: list[int] = []  # how often the model had been asked when a cancel was acknowledged
looked: list[str] = []


def answer(messages: list[ModelMessage]) -> Step:
    """Depends on nothing but what is asked, as an answer that is given again after a death must."""
    last = messages[-1].parts
    prompt = prompts_of(messages)[-1]
    if all(part.part_kind == "tool-return" for part in last):
        return Step.text("It is there.", delay=0.01)
    if any(asks_to_continue(getattr(part, "content", None)) for part in last):
        so_far = turn_position(messages)[1]
        return Step.text(chunks=[so_far, " And", " more."] if so_far else [" And", " more."])
    if prompt == "look":
        return Step.text("I look.") + Step.call("look", {"at": "it"}, id="call-1")
    if prompt == "stop":
        return Step.text(TEXTS["stop"], delay=1)
    thought = Step.reasoning("Well, well.", delay=0.01)
    return (
        thought + Step.text(TEXTS[prompt], delay=0.01) if prompt != "two" else Step.text("To two.")
    )


model = ScriptedModel.answering(answer)


class Talker(Think):
    chat_recovery = False
    model = model

    @tool(effect="read")
    async def look(self, at: str) -> str:
        """Look at something."""
        looked.append(at)
        return f"{at} is there"

    async def follow(self, request: str, after: int = 0) -> AsyncIterator[tuple[int, str]]:
        """The stream of a request, from a place on."""
        async for item in followed(self, request, after):
            yield item

    async def request_of(self, message: str) -> str | None:
        """The request that brought this message, if it was accepted."""
        found = await parts_of(self).activation.store.fetch(
            Query.same("SELECT id, messages FROM inbox WHERE agent = ?"), AGENT
        )
        for id, messages in found:
            if messages is not None and any(one["id"] == message for one in json.loads(messages)):
                return str(id)
        return "applied" if await self.get_message(message) is not None else None

    async def count(self, kind: str) -> int:
        query = Query.same("SELECT count(*) FROM inbox WHERE agent = ? AND kind = ?")
        return int((await parts_of(self).activation.store.fetch(query, AGENT, kind))[0][0])


class Listener:
    """A callback of `chat`."""

    def __init__(self, enough: int = 0) -> None:
        self.request = ""
        self.count = 0
        self.begun = asyncio.Event()
        self.heard_enough = asyncio.Event()
        self.enough = enough
        self.ends: list[str] = []

    def on_start(self, event: dict[str, str]) -> None:
        self.request = event["request_id"]
        accepted.add(self.request)
        self.begun.set()

    def on_event(self, chunk: str) -> None:
        seen.saw(self.request, self.count, chunk)
        self.count += 1
        if self.count == self.enough:
            self.heard_enough.set()

    def on_done(self) -> None:
        self.ends.append("done")

    def on_error(self, error: str) -> None:
        self.ends.append("error")

    def on_interrupted(self) -> None:
        self.ends.append("interrupted")


def user(prompt: str) -> dict[str, Any]:
    return {"id": f"u-{prompt}", "role": "user", "parts": [{"type": "text", "text": prompt}]}


async def watch(agent: Talker, request: str, after: int = 0) -> None:
    """One more reader, who comes later and starts at some place."""
    at = after
    async for seq, chunk in agent.follow(request, after):
        assert seq == at, "no gap, no repetition"
        seen.saw(request, seq, chunk)
        at += 1


async def converse(host: Host) -> None:
    """All kinds of turns. What was accepted in an earlier life is not asked again."""
    agent = host.get(Talker, "t")
    async with asyncio.TaskGroup() as side:
        if await agent.request_of("u-one") is None:
            one = Listener(enough=4)
            side.create_task(agent.chat(user("one"), one))
            await one.begun.wait()
            side.create_task(watch(agent, one.request))
            await one.heard_enough.wait()
            side.create_task(watch(agent, one.request, after=2))
        if await agent.request_of("u-two") is None:
            two = Listener()
            side.create_task(agent.chat(user("two"), two))
            await two.begun.wait()
        three = await agent.submit_messages(user("three"), idempotency_key="three")
        accepted.add(three.id)
        side.create_task(watch(agent, three.id))
    await host.until_settled()
    if not await agent.count("regenerate"):
        accepted.add((await agent.regenerate()).request_id)
    await host.until_settled()
    if not await agent.count("continue"):
        accepted.add((await agent.continue_last_turn()).request_id)
    looking = await agent.save_messages(user("look"), idempotency_key="look")
    accepted.add(looking.request_id)
    await host.until_settled()
    stopping = await agent.submit_messages(user("stop"), idempotency_key="stop")
    accepted.add(stopping.id)
    heard = 0
    async for seq, chunk in agent.follow(stopping.id):
        assert seq == heard
        seen.saw(stopping.id, seq, chunk)
        heard += 1
        if heard == 5 and await agent.cancel_chat(stopping.id, "enough"):
            cancelled_at.append(len(model.requests))
    await agent.add_messages({"id": "note", "role": "user", "parts": [text("Noted.")]})
    await until_swept(host)


async def until_swept(host: Host) -> None:
    """What was seen is in the streams; and when those are gone, it is in the messages."""
    await host.until_settled()
    rows = await stored(host, AGENT)
    assert void(rows).isdisjoint(rows.streams), "of what was cleared no chunk is left"
    due = host.clock.now() - KEEP_STREAMS
    is_gone = {entry.id for entry in rows.entries if entry.ended_at and entry.ended_at <= due}
    check_seen(rows, seen, gone=is_gone | void(rows))
    check_answers(rows)
    await asyncio.sleep(11 * 60)
    await host.until_settled()
    rows = await stored(host, AGENT)
    assert rows.streams == {}, "streams are kept for ten minutes"
    assert await alarm_rows(host) == []
    check_said(rows, seen, gone=void(rows))


def void(rows: Stored) -> set[str]:
    """The requests that were made before the conversation was cleared.

    By the last clear that ended one of them; a later one has at least taken the message that was answered.
    """
    cleared = [entry.seq for entry in rows.entries if entry.error == CLEARED]
    if not cleared:
        return set()
    return {
        entry.id
        for entry in rows.entries
        if entry.seq <= max(cleared) or (entry.target and entry.target not in rows.messages)
    }


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


OUTSIDE: list[Any] = [seen.chunks, accepted, cancelled_at, looked, model.requests]


def forget() -> None:
    for each in OUTSIDE:
        each.clear()


async def check(outcome: Outcome) -> None:
    host = outcome.host
    agent = host.get(Talker, "t")
    rows = await stored(host, AGENT)
    check_all_ended(rows)
    check_tree(rows)
    check_requests(model.requests, PROMPTS)
    assert {entry.id for entry in rows.entries} >= accepted, "what was accepted is known"
    assert [each.raw for each in await agent.get_messages()] == [row.message for row in rows.path]
    check_order(rows)
    check_turns(rows, deaths=len(outcome.deaths))


def check_order(rows: Stored) -> None:
    """Each message with its answer behind it, if there was time for one, and then the next."""
    path = rows.path
    asked = [row.id for row in path if row.role == "user"]
    assert asked == [*(f"u-{prompt}" for prompt in PROMPTS), "note"]
    for before, row in zip(path, path[1:], strict=False):
        if row.role == "assistant":
            assert before.role == "user"
            assert row.turn is not None
            prompt = before.id.removeprefix("u-")
            whole = TEXTS[prompt] + (MORE if prompt == "three" else "")
            assert is_part_of(row.text, whole, TEXTS[prompt]), (prompt, row.text)


def is_part_of(text: str, whole: str, first: str) -> bool:
    """A beginning of it, which may have been continued."""
    return whole.startswith(text) or any(
        text == first[:cut] + MORE[:more] for cut in range(len(first) + 1) for more in range(11)
    )


def check_turns(rows: Stored, deaths: int) -> None:
    kinds = [(entry.kind, entry.outcome) for entry in rows.entries]
    outcomes = [outcome for _, outcome in kinds]
    assert set(outcomes) <= {"completed", "interrupted", "aborted", "skipped"}
    assert outcomes.count("interrupted") <= deaths
    assert sum(kind == "message" for kind, _ in kinds) == len(PROMPTS)
    asked = [prompts_of(request.messages)[-1] for request in model.requests]
    turns = {"three": 3, "look": 2}  # regenerated and continued; asked again with the tool's result
    for prompt in PROMPTS:
        assert asked.count(prompt) <= turns.get(prompt, 1), "no turn asks twice"
    assert len(looked) <= 1
    [stop] = [entry for entry in rows.entries if entry.key == "stop"]
    if not deaths:
        assert outcomes == ["completed"] * 6 + ["aborted"]
        assert cancelled_at == [len(model.requests)]
        assert looked == ["it"]
    if cancelled_at:
        assert stop.outcome == "aborted"
        assert "stop" not in asked[cancelled_at[0] :], "nothing is asked after a cancel"


def swept(*, sample: int | None = None, postgres: int = 6) -> Any:
    """At some points: with recovery, `test_recovery_survives` dies at every one."""
    return pytest.mark.parametrize(
        ("mode", "engine", "sample"),
        [(mode, "sqlite", sample) for mode in MODES]
        + [(mode, "postgresql", postgres) for mode in MODES],
        ids=[f"{mode}-{engine}" for engine in ("sqlite", "postgresql") for mode in MODES],
    )


@pytest.fixture
def store(engine: str, request: pytest.FixtureRequest) -> str | None:
    return str(request.getfixturevalue("postgres")) if engine == "postgresql" else None


@pytest.mark.invariant("C1", "C3", "C4", "C5", "D10")
@swept(sample=40, postgres=8)
async def test_a_conversation(mode: Mode, store: str | None, sample: int | None) -> None:
    report = await crash_sweep(
        agents=[Talker],
        drive=converse,
        check=check,
        reset=forget,
        outside=OUTSIDE,
        mode=mode,
        store=store,
        sample=sample,
    )
    assert report.commits >= 40
    assert report.deaths >= (sample or 2 * report.commits)


@swept(sample=40, postgres=3)
async def test_a_conversation_whose_chunks_wait_for_more_of_them(
    mode: Mode, store: str | None, sample: int | None
) -> None:
    await crash_sweep(
        agents=[Talker],
        drive=converse,
        check=check,
        reset=forget,
        outside=OUTSIDE,
        mode=mode,
        store=store,
        sample=sample,
        host_options={"flush": 0.025},
    )


# --- clearing and resetting ----------------------------------------------------------------------


async def begin_and_stop(host: Host, how: Literal["clear", "reset"]) -> None:
    """A turn that streams and one that waits; then both are given up, and a third one follows."""
    agent = host.get(Talker, "t")
    if await agent.request_of("u-two") is None:
        async with asyncio.TaskGroup() as side:
            if await agent.request_of("u-stop") is None:
                first = Listener(enough=5)
                side.create_task(agent.chat(user("stop"), first))
                await first.heard_enough.wait()
            waiting = await agent.submit_messages(user("one"), idempotency_key="one")
            accepted.add(waiting.id)
            await (agent.clear_messages() if how == "clear" else agent.reset_turns())
            second = Listener()
            await agent.chat(user("two"), second)
    await until_swept(host)


async def clear(host: Host) -> None:
    await begin_and_stop(host, "clear")


async def reset(host: Host) -> None:
    await begin_and_stop(host, "reset")


async def check_stopped(outcome: Outcome, *, is_cleared: bool) -> None:
    rows = await stored(outcome.host, AGENT)
    check_all_ended(rows)
    check_tree(rows)
    for request in model.requests:
        check_request(request.messages)
    asked = [row.id for row in rows.path if row.role == "user"]
    if is_cleared:
        assert asked == ["u-two"]
        assert len(rows.messages) <= 2
    else:
        assert asked in (["u-stop", "u-two"], ["u-stop", "u-one", "u-two"])
    if not outcome.deaths:
        outcomes = [entry.outcome for entry in rows.entries]
        assert outcomes == ["aborted", "skipped", "completed"]
        assert len(rows.messages) == (2 if is_cleared else 4)
    messages = await outcome.host.get(Talker, "t").get_messages()
    assert [each.raw for each in messages] == [row.message for row in rows.path]


async def check_cleared(outcome: Outcome) -> None:
    await check_stopped(outcome, is_cleared=True)


async def check_reset(outcome: Outcome) -> None:
    await check_stopped(outcome, is_cleared=False)


@pytest.mark.invariant("D5")
@swept(postgres=3)
async def test_clearing_while_an_answer_streams(
    mode: Mode, store: str | None, sample: int | None
) -> None:
    await crash_sweep(
        agents=[Talker],
        drive=clear,
        check=check_cleared,
        reset=forget,
        outside=OUTSIDE,
        mode=mode,
        store=store,
        sample=sample,
    )


@swept(postgres=3)
async def test_resetting_while_an_answer_streams(
    mode: Mode, store: str | None, sample: int | None
) -> None:
    await crash_sweep(
        agents=[Talker],
        drive=reset,
        check=check_reset,
        reset=forget,
        outside=OUTSIDE,
        mode=mode,
        store=store,
        sample=sample,
    )


# --- stopping what waits -------------------------------------------------------------------------


async def stop_what_waits(host: Host) -> None:
    """A message that waits behind a running turn is stopped; then the turn is, and another one follows."""
    agent = host.get(Talker, "t")
    if await agent.request_of("u-two") is None:
        async with asyncio.TaskGroup() as side:
            if await agent.request_of("u-stop") is None:
                first = Listener(enough=5)
                side.create_task(agent.chat(user("stop"), first))
                await first.heard_enough.wait()
            if await agent.request_of("u-one") is None:
                waiting = Listener()
                side.create_task(agent.chat(user("one"), waiting))
                await waiting.begun.wait()
            for message in ("u-one", "u-stop"):
                await agent.cancel_chat(await agent.request_of(message) or "")
            await agent.reset_turns()
            await agent.chat(user("two"), Listener())
    await until_swept(host)


async def check_kept(outcome: Outcome) -> None:
    rows = await stored(outcome.host, AGENT)
    check_all_ended(rows)
    check_tree(rows)
    asked = [row.id for row in rows.path if row.role == "user"]
    assert asked == ["u-stop", "u-one", "u-two"]
    if not outcome.deaths:
        assert [entry.outcome for entry in rows.entries] == ["aborted", "aborted", "completed"]
        assert [row.role for row in rows.path] == ["user", "assistant", "user", "user", "assistant"]


@swept(postgres=3)
async def test_what_was_said_is_kept_when_it_is_stopped(
    mode: Mode, store: str | None, sample: int | None
) -> None:
    await crash_sweep(
        agents=[Talker],
        drive=stop_what_waits,
        check=check_kept,
        reset=forget,
        outside=OUTSIDE,
        mode=mode,
        store=store,
        sample=sample,
    )
