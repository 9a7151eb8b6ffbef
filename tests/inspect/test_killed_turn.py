"""A process that is really killed in the middle of a turn, and what can be told of it, before and after."""

from __future__ import annotations

import asyncio

import pytest
from killed import QUESTION, Clerk, kill_a_turn

from outlast import Host
from outlast.host.address import Address
from outlast.inspect import views
from outlast.inspect.hosted import is_hosted
from outlast.inspect.reader import reading
from outlast.inspect.values import TurnDetails
from outlast.store.operations import Query
from outlast.testing import ScriptedModel, Step
from support import hosting

CLERK = Address.of("Clerk", "a/ö")


async def explained(url: str, id: str) -> TurnDetails:
    hosted = await is_hosted(url)
    async with reading(url) as reader:
        address, whole = await views.find_turn(reader, id[:5])
        assert (address, whole) == (CLERK, id)
        return await views.turn(reader, address, whole, is_hosted=hosted)


async def recovered(url: str) -> None:
    async with Host([Clerk], url, cause="crashed") as host:
        await host.until_settled()


def kinds(found: TurnDetails) -> list[str]:
    return [moment.kind for moment in found.moments]


def test_the_timeline_tells_a_kill_right(store_url: str) -> None:
    id = kill_a_turn(store_url)
    before = asyncio.run(explained(store_url, id))
    first_life = ["accepted", "claimed", "step", "said", "called", "returned", "step", "called"]
    is_file = store_url.startswith("sqlite")
    assert kinds(before) == [*first_life, "left" if is_file else "running"]
    assert before.moments[0].what == f"Accepted through submit_messages(): “{QUESTION}”"
    assert [call.state for call in before.calls] == ["done", "begun"]

    asyncio.run(recovered(store_url))
    after = asyncio.run(explained(store_url, id))
    assert after.moments[: len(first_life)] == before.moments[: len(first_life)], "history stays"
    rest = after.moments[len(first_life) :]
    assert [moment.kind for moment in rest] == [
        "interrupted",
        "decided",
        "continued",
        "returned",
        "step",
        "said",
        "settled",
    ]
    decided, returned = rest[1], rest[3]
    assert (decided.row, decided.action, decided.cause) == (18, "continue", "crashed")
    assert decided.why == "it was interrupted while a tool was running"
    assert "unknown" in returned.what
    assert not returned.ok
    assert after.turn.outcome == "completed"
    times = [moment.at for moment in after.moments if moment.at is not None]
    assert times == sorted(times), "in the order in which it happened"
    assert after.said == "Let me see. It is sunny."
    commits = after.commits
    assert commits[0].seq == 0
    assert all(a.seq + a.chunks == b.seq for a, b in zip(commits, commits[1:], strict=False))
    assert {each.attempt for each in commits} == {1, 2}
    assert sum(each.chunks for each in commits) == after.chunks


@pytest.mark.virtual_time
async def test_decisions_stay_as_long_as_their_turn_and_no_longer(store_url: str) -> None:
    class Stalling(Clerk):
        model = ScriptedModel(Step.text("Well ") + Step.stalls(), "then.", "Yes.", by="request")
        chat_stream_stall_timeout = 1

    count = Query.same("SELECT count(*) FROM decisions")
    async with hosting(Stalling, url=store_url) as host:
        turn = await host.get(Stalling, "a").save_messages("Hi")
        assert turn.status == "completed"
        assert await host.store.fetch(count) == [(1,)]
        await asyncio.sleep(29 * 24 * 3600)
        await host.until_settled()
        assert await host.store.fetch(count) == [(1,)]
        assert await host.get(Stalling, "a").list_incidents() == []
        await asyncio.sleep(2 * 24 * 3600)
        await host.get(Stalling, "a").save_messages("Again")
        await asyncio.sleep(3600)  # what its end leaves behind is cleared up, with what is old
        await host.until_settled()
        assert await host.store.fetch(count) == [(0,)]
