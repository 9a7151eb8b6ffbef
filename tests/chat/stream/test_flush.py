"""`Host(flush=…)`: chunks wait for more of them; whoever waits for a commit does not wait longer."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from chat_rows import check_answers, stored
from conversation import talker
from pydantic_ai.toolsets import FunctionToolset

from outlast import Host
from outlast.agent.commit import Commit
from outlast.chat.message.results import TurnEnd
from outlast.chat.stream import sql as stream_rows
from outlast.chat.stream import stream as streams
from outlast.chat.stream.stream import Stream
from outlast.store.operations import Operation
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

FLOOR = 0.05
NOTE: Operation = (stream_rows.APPEND, ("A/a", "note", 0, 1, 1, "noted"))


class Store:
    """Commits at once, and keeps when and what."""

    def __init__(self) -> None:
        self.commits: list[tuple[float, int]] = []
        self.written: list[Operation] = []

    def __call__(self, operations: list[Operation]) -> asyncio.Future[tuple[int, ...]]:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[int, ...]] = loop.create_future()
        loop.call_soon(outcome.set_result, (1,) * len(operations))
        self.commits.append((round(loop.time(), 3), len(operations)))
        self.written += operations
        return outcome

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.commits]


def opened(flush: float = FLOOR) -> tuple[Stream, Store]:
    stream, store = Stream("A/a", "r1", flush=flush), Store()
    stream.open_for(1, store)
    return stream, store


async def say(stream: Stream, chunks: int, every: float = 0.01) -> None:
    for n in range(chunks):
        stream.append(f"chunk {n}")
        await asyncio.sleep(every)


async def test_without_a_floor_every_chunk_is_written_when_it_comes() -> None:
    stream, store = opened(flush=0)
    await say(stream, 5)
    assert store.times == [0.0, 0.01, 0.02, 0.03, 0.04]


async def test_the_first_chunk_is_written_at_once_and_the_next_ones_at_the_floor() -> None:
    stream, store = opened()
    await say(stream, 12)
    await asyncio.sleep(1)
    assert store.times == [0.0, 0.05, 0.1, 0.15]
    assert len(stream.chunks) == 12


async def test_a_chunk_after_a_pause_is_written_at_once() -> None:
    stream, store = opened()
    await say(stream, 1)
    await asyncio.sleep(3)
    await say(stream, 1)
    assert store.times == [0.0, 3.01]


async def test_whoever_waits_for_what_was_said_does_not_wait_for_the_floor() -> None:
    stream, store = opened()
    await say(stream, 2)
    await stream.stored()
    assert store.times == [0.0, 0.02]
    assert len(stream.chunks) == 2


async def test_what_is_attached_does_not_wait_for_the_floor() -> None:
    """Intents and outcomes of tools, and whatever else is written together with chunks."""
    stream, store = opened()
    await say(stream, 2)
    stream.attach(NOTE)
    await asyncio.sleep(0.001)
    assert store.commits == [(0.0, 1), (0.02, 2)]
    stream.append("more")
    await asyncio.sleep(1)
    assert store.times[2:] == [0.07], "the floor is counted from the latest commit"


async def test_the_end_does_not_wait_for_the_floor() -> None:
    stream, store = opened()
    await say(stream, 2)
    await stream.drained()
    commit = Commit(SimpleNamespace(submit=store))
    stream.finish(commit, TurnEnd("completed"))
    commit.write(NOTE)
    await commit.stored()
    assert store.times == [0.0, 0.02]
    assert len(stream.chunks) == 2
    await asyncio.sleep(1)
    assert len(store.commits) == 2, "and nothing is written after it"


async def test_a_model_that_is_faster_than_the_floor_is_not_held_back_by_it() -> None:
    stream, store = opened()
    stream.append("a")
    await asyncio.sleep(0.001)
    stream.append("b" * (streams.MAX_WAITING + 1))
    await stream.wait_for_room()
    assert store.times == [0.0, 0.001]


async def test_a_stream_that_is_closed_writes_nothing_when_the_floor_comes() -> None:
    stream, store = opened()
    await say(stream, 2)
    stream.close()
    await asyncio.sleep(1)
    assert store.times == [0.0]


# --- an agent -------------------------------------------------------------------------------------


async def commits_of_an_answer(url: str, **options: Any) -> int:
    agent_class = talker(ScriptedModel(Step.text("word " * 50, delay=0.01)))
    async with hosting(agent_class, url=url, **options) as host:
        before = host.store.statistics().commits
        result = await host.get(agent_class, "a").save_messages("Hi")
        assert (result.status, result.message.text) == ("completed", "word " * 50)
        check_answers(await stored(host, "Talker/a"))
        return host.store.statistics().commits - before


async def test_a_floor_saves_commits(store_url: str) -> None:
    assert await commits_of_an_answer(store_url, flush=timedelta(milliseconds=50)) < 20


async def test_without_one_each_word_is_a_commit(sqlite_url: str) -> None:
    assert await commits_of_an_answer(sqlite_url) > 50


async def test_a_tool_begins_at_once_and_its_outcome_is_written_at_once(
    sqlite_world: World,
) -> None:
    """With a floor of ten seconds a turn with a tool takes no longer than without."""
    times: dict[str, float] = {}
    tools = FunctionToolset[Any]()

    @tools.tool_plain
    async def look() -> str:
        times["tool"] = asyncio.get_running_loop().time()
        return "there"

    model = ScriptedModel(Step.text("I look.", delay=0.01) + Step.call("look", {}), "It is there.")
    agent_class = talker(model, get_tools=lambda self: tools)
    host = await sqlite_world.host(agent_class, flush=10)
    started = asyncio.get_running_loop().time()
    result = await host.get(agent_class, "a").save_messages("Hi")
    assert result.status == "completed"
    assert times["tool"] - started < 1
    assert asyncio.get_running_loop().time() - started < 1


@pytest.mark.parametrize("flush", [-0.1, float("nan"), 11, timedelta(minutes=1)])
async def test_a_floor_that_makes_no_sense_is_refused(flush: Any) -> None:
    with pytest.raises(ValueError, match="flush must "):
        Host(agents=[talker(None)], flush=flush)


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ([3, 3], [2]),
        ([4, 4], [2]),
        ([4, 5], [1, 1]),
        ([3, 3, 3], [2, 1]),
        ([20, 1], [1, 1]),
        ([1] * 12, [5, 5, 2]),
    ],
)
async def test_chunks_that_do_not_fit_into_a_row_are_several(
    sizes: list[int], rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LONGEST_ROW", 9)
    stream, store = opened()
    for size in sizes:
        stream.append("x" * size)
    await stream.stored()
    assert [arguments[3] for _, arguments in store.written] == rows
    assert [arguments[2] for _, arguments in store.written] == [
        sum(rows[:at]) for at in range(len(rows))
    ]
    text = "\n".join(str(arguments[5]) for _, arguments in store.written)
    assert [len(chunk) for chunk in text.split("\n")] == sizes
