"""Submissions and idempotency keys: accepted once, answered once, and there to be looked at."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    counts,
    inbox,
    leftovers,
    said,
    talker,
    until_running,
)
from pydantic import BaseModel

from outlast import SubmissionConflict, Think, TurnConfig
from outlast.agent.agent import parts_of
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.run.runner import Runner
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

SLOW = Step.text("one two", delay=1)


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.invariant("C2")
async def test_fifty_at_once_with_one_key_are_one_turn(world: World) -> None:
    Talker = talker(model := answering(SLOW))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turns = await asyncio.gather(
        *(a.save_messages(f"u{n}", idempotency_key="k") for n in range(50))
    )
    assert len({turn.request_id for turn in turns}) == 1
    assert sum(turn.accepted for turn in turns) == 1
    assert {(turn.status, turn.message.text) for turn in turns} == {("completed", "one two")}
    assert len(model.requests) == 1
    assert await counts(host, "inbox", "messages") == {"inbox": 1, "messages": 2}
    assert leftovers(agent_of(host, Talker)) == {}


@pytest.mark.invariant("C2")
async def test_fifty_submissions_at_once_with_one_key_or_id_are_one(world: World) -> None:
    Talker = talker(model := answering(SLOW))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    found = await asyncio.gather(
        *(a.submit_messages("u", idempotency_key="k") for _ in range(50)),
        *(a.submit_messages("v", submission_id="s") for _ in range(50)),
    )
    assert len({each.id for each in found[:50]}) == 1
    assert {each.id for each in found[50:]} == {"s"}
    assert sum(each.accepted for each in found) == 2
    await host.until_settled()
    assert len(model.requests) == 2


@pytest.mark.invariant("C2")
@pytest.mark.parametrize("moment", ["while it waits", "while it runs", "when it has ended"])
async def test_a_second_call_with_the_same_key_joins_the_first(world: World, moment: str) -> None:
    Talker = talker(model := answering(SLOW))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    if moment == "while it waits":
        await a.submit_messages("before")
    first = asyncio.create_task(a.save_messages("u", idempotency_key="k"))
    await asyncio.sleep(5 if moment == "when it has ended" else 1)
    second = await a.save_messages("u", idempotency_key="k")
    assert (await first).accepted
    assert not second.accepted
    assert (second.request_id, second.message) == (
        first.result().request_id,
        first.result().message,
    )
    submitted = await a.submit_messages("u", idempotency_key="k")
    assert (submitted.id, submitted.accepted) == (second.request_id, False)
    await host.until_settled()
    assert len(model.requests) == (2 if moment == "while it waits" else 1)


@pytest.mark.invariant("C2")
async def test_a_call_that_joins_at_the_very_end_of_the_first_does_not_wait_for_ever(
    world: World,
) -> None:
    Talker = talker(answering(SLOW))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u", idempotency_key="k"))
    await until_running(host, Talker)
    inbox_of = parts_of(agent_of(host, Talker))[Inbox]
    existing = inbox_of.existing

    async def slowly(*which: Any) -> Any:
        found = await existing(*which)
        await first  # it has ended by the time that what was read of it arrives
        return found

    inbox_of.existing = slowly
    async with asyncio.timeout(60):
        second = await a.save_messages("u", idempotency_key="k")
    assert (second.status, second.message) == ("completed", first.result().message)


@pytest.mark.invariant("C2", "C7")
async def test_a_call_with_the_same_key_joins_the_first_also_after_a_restart(
    world: World,
) -> None:
    Talker = talker(model := answering(SLOW))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    ended = await a.save_messages("u1", idempotency_key="k1")
    waiting = asyncio.create_task(a.save_messages("u2", idempotency_key="k2"))
    await until_running(host, Talker)
    await a.submit_messages("u3", idempotency_key="k3")
    await asyncio.sleep(1.5)
    await world.stop()
    await asyncio.gather(waiting, return_exceptions=True)
    host = await world.next_life()
    a = host.get(Talker, "a")
    turns = [await a.save_messages("again", idempotency_key=f"k{n}") for n in (1, 2, 3)]
    assert [turn.status for turn in turns] == ["completed", "interrupted", "completed"]
    assert [turn.message.text for turn in turns] == ["one two", "one ", "one two"]
    assert turns[0].message == ended.message
    assert not any(turn.accepted for turn in turns)
    assert len(model.requests) == 3
    assert await counts(host, "inbox", "messages") == {"inbox": 3, "messages": 6}


async def test_an_id_and_a_key_of_different_requests_are_a_conflict(world: World) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.submit_messages("u", submission_id="s1", idempotency_key="k1")
    await a.submit_messages("u", submission_id="s2")
    for id, key in (("s1", "k2"), ("s2", "k1"), ("s3", "k1"), ("s2", "k2")):
        with pytest.raises(SubmissionConflict, match=f"{id}|{key}"):
            await a.submit_messages("u", submission_id=id, idempotency_key=key)
    same = await a.submit_messages("u", submission_id="s1", idempotency_key="k1")
    assert (same.id, same.accepted) == ("s1", False)
    assert (await counts(host, "inbox"))["inbox"] == 2


async def test_keys_of_different_agents_have_nothing_to_do_with_each_other(world: World) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    for name in ("a", "b"):
        turn = await host.get(Talker, name).save_messages("u", idempotency_key="k")
        assert turn.accepted


async def test_everybody_who_joins_a_turn_gets_its_output(world: World) -> None:
    class Answer(BaseModel):
        n: int

    class Typed(Think):
        model = answering(Step.text('{"n": 7}', delay=1))

        async def before_turn(self, context: Any) -> TurnConfig:
            return TurnConfig(output=Answer)

    host = await world.host(Typed)
    a = host.get(Typed, "a")
    turns = await asyncio.gather(*(a.save_messages("u", idempotency_key="k") for _ in "123"))
    assert [turn.output for turn in turns] == [Answer(n=7)] * 3
    cancelled = asyncio.create_task(a.save_messages("v"))
    await asyncio.sleep(0.5)
    cancelled.cancel()
    await host.until_settled()
    assert leftovers(agent_of(host, Typed)) == {}


async def test_a_schedule_that_runs_again_submits_what_it_had_submitted_only_once(
    world: World,
) -> None:
    runs: list[int] = []

    class Daily(Think):
        model = answering("Hello")

        async def go(self) -> None:
            await self.schedule(1, self.remind)

        async def remind(self, payload: Any = None) -> None:
            runs.append(len(runs))
            await self.submit_messages("Good morning")
            await self.submit_messages("Good morning")
            if len(runs) == 1:
                raise OSError("once")

    host = await world.host(Daily)
    await host.get(Daily, "a").go()
    await asyncio.sleep(60)
    await host.until_settled()
    assert len(runs) == 2
    assert said(await host.get(Daily, "a").get_messages())[::2] == ["user: Good morning"] * 2


# --- submissions ---------------------------------------------------------------------------------


@pytest.mark.invariant("L1")
async def test_a_submission_is_accepted_before_any_model_is_called(world: World) -> None:
    Talker = talker(model := answering("Hello"))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    submitted = await a.submit_messages("u", metadata={"n": 1}, submission_id="s")
    assert model.requests == []
    assert (submitted.id, submitted.status, submitted.accepted) == ("s", "pending", True)
    assert (submitted.metadata, submitted.idempotency_key) == ({"n": 1}, None)
    assert (submitted.started_at, submitted.completed_at, submitted.error) == (None,) * 3
    parts_of(agent_of(host, Talker))[Runner]._work.cancel()  # before it has done anything
    await world.stop()
    assert model.requests == []
    host = await world.next_life()
    await host.until_settled()
    found = await host.get(Talker, "a").inspect_submission("s")
    assert (found.status, found.metadata) == ("completed", {"n": 1})
    assert found.created_at == submitted.created_at
    assert found.created_at <= found.started_at <= found.completed_at
    assert len(model.requests) == 1


@pytest.mark.invariant("L2")
async def test_submissions_run_in_order_and_their_outcome_never_changes(world: World) -> None:
    Talker = talker(model := answering(SLOW, Step.fails(ValueError("no")), SLOW), max_retries=0)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    ids = [(await a.submit_messages(f"u{n}")).id for n in range(4)]
    assert await a.cancel_submission(ids[2], "not needed")
    await host.until_settled()
    assert [line for line in said(await a.get_messages()) if line.startswith("user")] == [
        "user: u0",
        "user: u1",
        "user: u3",
    ]
    statuses = ["completed", "error", "aborted", "completed"]
    assert [(await a.inspect_submission(id)).status for id in ids] == statuses
    assert (await a.inspect_submission(ids[2])).error == "not needed"
    for id in ids:
        assert not await a.cancel_submission(id)
    await a.reset_turns()
    assert [(await a.inspect_submission(id)).status for id in ids] == statuses
    assert len(model.requests) == 3


@pytest.mark.invariant("L2")
async def test_a_submission_of_several_messages_cancelled_before_its_turn_leaves_none(
    world: World,
) -> None:
    Talker = talker(answering(SLOW))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.submit_messages("u0")
    await until_running(host, Talker)
    several = await a.submit_messages(["u1", "u2", "u3"])
    assert await a.cancel_submission(several.id)
    await host.until_settled()
    assert said(await a.get_messages()) == ["user: u0", "assistant: one two"]


async def test_submissions_are_listed_newest_first_and_by_status(world: World) -> None:
    Talker = talker(answering(SLOW, SLOW, Step.stalls()))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    for n in range(6):
        await a.submit_messages(f"u{n}", submission_id=f"s{n}")
    await a.cancel_submission("s5")
    await asyncio.sleep(10)

    async def listed(**options: Any) -> list[str]:
        return [each.id for each in await a.list_submissions(**options)]

    assert await listed() == ["s5", "s4", "s3", "s2", "s1", "s0"]
    assert await listed(limit=2) == ["s5", "s4"]
    assert await listed(status="pending") == ["s4", "s3"]
    assert await listed(status="running", limit=1) == ["s2"]
    assert await listed(status="completed", limit=1) == ["s1"]
    assert await listed(status=["aborted", "running"]) == ["s5", "s2"]
    assert await listed(status=["error", "skipped", "interrupted"]) == []
    for limit in (0, 101, -1):
        with pytest.raises(ValueError, match="from 1 to 100"):
            await listed(limit=limit)
    with pytest.raises(ValueError, match="status must be one of .*, got 'done'"):
        await listed(status="done")


async def test_what_is_not_a_submission_is_none(world: World) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turn = await a.save_messages("Hi")
    assert await a.inspect_submission(turn.request_id) is None
    assert await a.inspect_submission("unknown") is None
    assert await a.list_submissions() == []
    assert await a.delete_submissions() == 0
    assert (await counts(host, "inbox"))["inbox"] == 1


@pytest.mark.invariant("L8")
async def test_deleting_takes_the_oldest_that_have_ended_and_leaves_the_others(
    world: World,
) -> None:
    Talker = talker(answering(SLOW, SLOW, SLOW, Step.stalls()))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    for n in range(6):
        await a.submit_messages(f"u{n}", submission_id=f"s{n}")
    await a.cancel_submission("s5")
    await asyncio.sleep(20)
    assert await a.delete_submissions(status=["pending", "running"]) == 0
    third = (await a.inspect_submission("s2")).completed_at
    assert await a.delete_submissions(completed_before=third, limit=1) == 1
    assert await a.inspect_submission("s5") is None  # cancelled first of all
    assert await a.delete_submissions(completed_before=third) == 2
    assert await a.delete_submissions(completed_before=third - timedelta(days=1)) == 0
    assert await a.delete_submissions() == 1
    left = await a.list_submissions()
    assert [(each.id, each.status) for each in left] == [("s4", "pending"), ("s3", "running")]
    for limit in (0, 501):
        with pytest.raises(ValueError, match="from 1 to 500"):
            await a.delete_submissions(limit=limit)


async def test_boots_leave_submissions_that_wait_or_have_ended_as_they_are(store_url: str) -> None:
    Talker = talker(model := answering("Hello"))
    async with hosting(Talker, url=store_url) as host:
        a = host.get(Talker, "a")
        await a.submit_messages("u1", submission_id="done")
        await host.until_settled()
    model.answers[:] = [Step.stalls()]
    async with hosting(Talker, url=store_url, life="2", shutdown_timeout=0) as host:
        a = host.get(Talker, "a")
        await a.submit_messages("u2", submission_id="running")
        await a.submit_messages("u3", submission_id="gone")
        await a.cancel_submission("gone")
        await asyncio.sleep(1)
    model.answers[:] = ["Hello"]
    for life in "345":
        async with hosting(Talker, url=store_url, life=life) as host:
            await host.until_settled()
            outcomes = dict(await inbox(host, "id, outcome"))
            assert outcomes == {"done": "completed", "running": "interrupted", "gone": "aborted"}
    assert len(model.requests) == 2


async def test_a_submission_is_looked_at_while_it_runs(world: World) -> None:
    Talker = talker(ScriptedModel(SLOW))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    submitted = await a.submit_messages("u")
    await asyncio.sleep(0.5)
    found = await a.inspect_submission(submitted.id)
    assert (found.status, found.completed_at) == ("running", None)
    assert found.started_at is not None


async def test_two_with_one_key_in_one_commit_block_are_one(world: World) -> None:
    class Twice(Think):
        model = ScriptedModel("Hello", repeat=True)

        async def twice(self) -> list[tuple[str, bool]]:
            async with self.commit():
                first = await self.submit_messages("u1", idempotency_key="k")
                second = await self.submit_messages("u1", idempotency_key="k")
                third = await self.submit_messages("u2", submission_id=first.id)
                with pytest.raises(SubmissionConflict):
                    await self.submit_messages("u3", submission_id="other", idempotency_key="k")
            return [(each.id, each.accepted) for each in (first, second, third)]

    host = await world.host(Twice)
    t = host.get(Twice, "t")
    (id, _), *_ = found = await t.twice()
    assert found == [(id, True), (id, False), (id, False)]
    await host.until_settled()
    assert said(await t.get_messages()) == ["user: u1", "assistant: Hello"]
