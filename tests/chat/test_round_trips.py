"""What a turn and an activation ask of the store: each round trip to a PostgreSQL server is time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from conversation import talker

from outlast import Host
from outlast.store.base import Store
from outlast.store.operations import Query
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time


class Counting:
    """The reads and commits that a PostgreSQL store makes."""

    def __init__(self, store: Store) -> None:
        self.reads: list[str] = []
        self._store = store
        fetch = store._fetch

        async def counted(query: Query, arguments: Sequence[Any]) -> Any:
            self.reads.append(query.postgres)
            return await fetch(query, arguments)

        store._fetch = counted  # type: ignore[method-assign]
        self.clear()

    def clear(self) -> None:
        self.reads.clear()
        self._commits = self._store.statistics().batches

    @property
    def commits(self) -> int:
        return self._store.statistics().batches - self._commits


def user(text: str, id: str) -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


async def one_turn(host: Host, Talker: type[Any], counting: Counting) -> tuple[int, int]:
    counting.clear()
    assert (await host.get(Talker, "a").save_messages("hi")).status == "completed"
    await host.until_settled()
    return len(counting.reads), counting.commits


async def test_a_warm_turn_is_three_round_trips(postgres_url: str) -> None:
    Talker = talker(ScriptedModel(Step.text("Hello!"), repeat=True))
    async with hosting(Talker, url=postgres_url) as host:
        await host.until_settled()
        counting = Counting(host.store)
        assert await one_turn(host, Talker, counting) == (1, 3)
        assert await one_turn(host, Talker, counting) == (0, 3)
    async with hosting(Talker, url=postgres_url, life="2") as host:
        await host.until_settled()
        counting = Counting(host.store)
        reads, commits = await one_turn(host, Talker, counting)
        assert (reads, commits) == (2, 3), counting.reads  # the conversation is the second


async def test_a_message_that_is_stored_outside_of_what_is_in_memory_is_not_stored_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.chat.transcript.transcript.WINDOW_BYTES", 1)
    Talker = talker(ScriptedModel(Step.text("Hello!"), repeat=True))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    for number in range(5):
        await a.save_messages([user(f"u{number}", id=f"m{number}")])
    host = await world.next_life()
    a = host.get(Talker, "a")
    again = await a.save_messages([user("changed", id="m0")])
    assert again.status == "skipped", "there is nothing new to answer"
    both = await a.save_messages([user("changed", id="m0"), user("new", id="m9")])
    assert both.status == "completed"
    stored = await host.store.fetch(
        Query.same("SELECT id, body FROM messages WHERE role = 'user' ORDER BY number")
    )
    assert [id for id, _ in stored] == ["m0", "m1", "m2", "m3", "m4", "m9"]
    assert "changed" not in stored[0][1]
