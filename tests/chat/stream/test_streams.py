"""Streams: what anybody is shown is durable, and whoever reads gets each chunk once, in order."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from chat_rows import Seen, check_answers, check_seen, stored
from conversation import agent_of, answering, followed, meddle, rows, talker
from pydantic_ai.toolsets import FunctionToolset

from outlast import Agent, Host, Think, tool
from outlast.agent.commit import Commit
from outlast.chat.message.results import TurnEnd
from outlast.chat.stream import stream as streams
from outlast.chat.stream.stream import Stream
from outlast.core.errors import CommitFailed, CommitRefused, OwnershipLost
from outlast.store.base import StoreOptions
from outlast.store.operations import Batch, Operation
from outlast.store.url import open_store
from outlast.testing import CountingIds, ScriptedModel, Step, VirtualClock, VirtualLoop
from support import World, alarm_rows, hosting, raw

COMPLETED = TurnEnd("completed")


class Commits:
    """Takes commits, and grants them one by one."""

    def __init__(self) -> None:
        self.handed_over: list[tuple[list[Operation], asyncio.Future[tuple[int, ...]]]] = []
        self.granted = 0

    def __call__(self, operations: list[Operation]) -> asyncio.Future[tuple[int, ...]]:
        outcome: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        self.handed_over.append((operations, outcome))
        return outcome

    @property
    def rows(self) -> list[tuple[int, int, str]]:
        """Seq, count and body of every row that was handed over."""
        found = [arguments for operations, _ in self.handed_over for _, arguments in operations]
        return [(seq, count, body) for _, _, seq, count, _, body in found]  # type: ignore[misc]

    async def grant(self, failure: Exception | None = None) -> None:
        """The next commit has ended, and everybody has heard of it."""
        _, outcome = self.handed_over[self.granted]
        self.granted += 1
        if failure is None:
            outcome.set_result((1,))
        else:
            outcome.set_exception(failure)
        await tick()


async def tick() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def opened() -> tuple[Stream, Commits]:
    stream, commits = Stream("A/a", "r1"), Commits()
    stream.open_for(1, commits)
    return stream, commits


async def settle(stream: Stream, commits: Commits, *operations: Operation) -> None:
    """End a stream in one commit, as the end of its turn does."""
    await stream.drained()
    commit = Commit(SimpleNamespace(submit=commits))
    stream.finish(commit, COMPLETED)
    commit.write(*operations)
    await commit.stored()


class Reader:
    """Reads a stream in the background."""

    def __init__(self, stream: Stream, after: int = 0) -> None:
        self.heard: list[tuple[int, str]] = []
        self.task = asyncio.create_task(self._read(stream, after))

    async def _read(self, stream: Stream, after: int) -> None:
        async for seq, chunk in stream.read(after):
            self.heard.append((seq, chunk))


# --- a stream by itself --------------------------------------------------------------------------


async def test_the_chunks_of_a_tick_are_one_row() -> None:
    stream, commits = opened()
    for chunk in "abc":
        stream.append(chunk)
    await tick()
    assert commits.rows == [(0, 3, "a\nb\nc")]


async def test_chunks_ride_in_the_next_commit_while_one_is_in_flight() -> None:
    stream, commits = opened()
    stream.append("a")
    await tick()
    for chunk in "bcd":
        stream.append(chunk)
        await tick()
    assert commits.rows == [(0, 1, "a")]
    await commits.grant()
    assert commits.rows == [(0, 1, "a"), (1, 3, "b\nc\nd")]
    await commits.grant()
    assert stream.chunks == list("abcd")
    assert len(commits.handed_over) == 2, "and no commit without chunks"


async def test_nothing_is_shown_before_it_is_durable() -> None:
    stream, commits = opened()
    reader = Reader(stream)
    stream.append("a")
    stream.append("b")
    await tick()
    assert commits.rows == [(0, 2, "a\nb")]
    assert reader.heard == []
    await commits.grant()
    assert reader.heard == [(0, "a"), (1, "b")]
    reader.task.cancel()


async def test_a_reader_gets_what_is_stored_and_then_what_comes_from_any_place_on() -> None:
    stream, commits = opened()
    readers: list[Reader] = []
    for number in range(6):
        readers += [Reader(stream, after) for after in range(-1, 9)]
        stream.append(str(number))
        await tick()
        await commits.grant()
    settling = asyncio.create_task(settle(stream, commits))
    await tick()
    await commits.grant()
    await settling
    readers += [Reader(stream, after) for after in range(-1, 9)]
    await asyncio.gather(*(reader.task for reader in readers))
    for reader, after in zip(readers, 7 * list(range(-1, 9)), strict=True):
        assert reader.heard == [(seq, str(seq)) for seq in range(max(0, after), 6)]


async def test_readers_of_any_speed_hold_up_nobody() -> None:
    stream, commits = opened()
    quick = Reader(stream)
    slow = stream.read()
    stopped = stream.read()
    for number in range(10):
        stream.append(str(number))
        await tick()
        await commits.grant()
        if number == 0:
            assert await anext(slow) == (0, "0")
            assert await anext(stopped) == (0, "0")
            await stopped.aclose()
    assert [seq for seq, _ in quick.heard] == list(range(10))
    stream.close(COMPLETED)
    assert [seq async for seq, _ in slow] == list(range(1, 10))
    await quick.task


async def test_cancelled_readers_leave_the_others_alone() -> None:
    stream, commits = opened()
    readers = [Reader(stream) for _ in range(10)]
    await tick()
    for reader in readers[::2]:
        reader.task.cancel()
    stream.append("a")
    await tick()
    await commits.grant()
    assert [len(reader.heard) for reader in readers] == [0, 1] * 5
    stream.close(COMPLETED)
    await asyncio.gather(*(reader.task for reader in readers[1::2]))
    assert stream._readers == set()


async def test_a_model_that_is_faster_than_the_store_is_held_back() -> None:
    stream, commits = opened()
    stream.append("a")
    await tick()
    stream.append("b" * streams.MAX_WAITING)
    await asyncio.wait_for(stream.wait_for_room(), 60)
    stream.append("c")
    waiting = asyncio.create_task(stream.wait_for_room())
    await tick()
    assert not waiting.done()
    await commits.grant()
    assert waiting.done(), "what waited is on its way"
    assert commits.rows[1][1] == 2


async def test_a_reader_that_comes_while_the_end_is_being_stored_gets_the_end() -> None:
    stream, commits = opened()
    early = Reader(stream)
    stream.append("a")
    stream.hold()
    settling = asyncio.create_task(settle(stream, commits))
    await tick()
    late = Reader(stream)
    await tick()
    assert not late.task.done()
    assert early.heard == late.heard == []
    await commits.grant()
    await settling
    for reader in (early, late):
        await reader.task
        assert reader.heard == [(0, "a")]
    assert stream.end == COMPLETED


async def test_the_last_chunks_wait_for_the_end_of_their_turn() -> None:
    stream, commits = opened()
    stream.append("a")
    await tick()
    stream.append("the end")
    settling = asyncio.create_task(settle(stream, commits))
    await commits.grant()
    await commits.grant()
    await settling
    assert len(commits.handed_over) == 2
    assert stream.chunks == ["a", "the end"]


@pytest.mark.parametrize("failure", [CommitFailed("full"), OwnershipLost("another one has it")])
@pytest.mark.parametrize("at_the_end", [False, True])
async def test_readers_of_a_stream_that_cannot_be_written_are_left_without_an_end(
    failure: Exception, at_the_end: bool
) -> None:
    stream, commits = opened()
    reader = Reader(stream)
    stream.append("a")
    await tick()
    await commits.grant()
    stream.append("b")
    if at_the_end:
        stream.hold()
    settling = asyncio.create_task(settle(stream, commits)) if at_the_end else None
    await tick()
    if not at_the_end:
        stream.append("c")
    await commits.grant(failure)
    await reader.task
    assert reader.heard == [(0, "a")], "nothing that is not stored"
    assert stream.end is None
    if settling is not None:
        with pytest.raises(type(failure)):
            await settling
    else:
        with pytest.raises(type(failure)):
            await stream.stored()
    stream.append("d")
    await tick()
    assert len(commits.handed_over) == 2, "nothing is written after it"


async def test_readers_of_a_turn_that_somebody_else_has_ended_wait_for_that_end() -> None:
    stream, commits = opened()
    reader = Reader(stream)
    stream.append("a")
    stream.hold()
    settling = asyncio.create_task(settle(stream, commits))
    await tick()
    await commits.grant(CommitRefused("cleared"))
    with pytest.raises(CommitRefused):
        await settling
    assert not reader.task.done()
    stream.close(TurnEnd("aborted"))
    await reader.task
    assert reader.heard == []


# --- with agents and stores ----------------------------------------------------------------------


class Following(Think):
    """An agent whose streams can be read by anybody."""

    chat_recovery = False

    async def follow(self, request: str, after: int = 0) -> AsyncIterator[tuple[int, str]]:
        async for item in followed(self, request, after):
            yield item


def following(model: Any, **members: Any) -> type[Any]:
    return type("Talker", (Following,), {"model": model, **members})


class Committed:
    """A probe: every chunk that is durable, and what each commit consisted of."""

    def __init__(self) -> None:
        self.chunks: set[tuple[str, int]] = set()  # turn and seq
        self.batches: list[list[tuple[str, tuple[Any, ...]]]] = []

    def before_commit(self, batches: Sequence[Batch]) -> None: ...

    def after_commit(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self.batches.append([(each.name, arguments) for each, arguments in batch.operations])
            for name, arguments in self.batches[-1]:
                if name == "streams append":
                    _, turn, seq, count, _, _ = arguments
                    self.chunks |= {(str(turn), at) for at in range(seq, seq + count)}


async def probed(url: str, *agents: type[Any], **options: Any) -> tuple[Host, Committed]:
    probe = Committed()
    store = await open_store(url, StoreOptions(probe=probe))
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        loop.watch(store)
        options["clock"] = VirtualClock(loop)
    return Host(agents, store, ids=CountingIds(), **options), probe


class Caller:
    """A callback of `chat` that keeps what it is told, and can be waited for."""

    def __init__(self, enough: int = 0) -> None:
        self.request = ""
        self.chunks: list[str] = []
        self.ends: list[str] = []
        self.begun = asyncio.Event()
        self.heard_enough = asyncio.Event()
        self._enough = enough

    def on_start(self, event: dict[str, str]) -> None:
        self.request = event["request_id"]
        self.begun.set()

    def on_event(self, chunk: str) -> None:
        self.chunks.append(chunk)
        if len(self.chunks) == self._enough:
            self.heard_enough.set()

    def on_done(self) -> None:
        self.ends.append("done")

    def on_error(self, error: str) -> None:
        self.ends.append("error")

    def on_interrupted(self) -> None:
        self.ends.append("interrupted")


LONG = Step.reasoning("Let me see.", delay=0.01) + Step.text("One two three four.", delay=0.01)


@pytest.mark.virtual_time
async def test_whatever_a_reader_is_shown_is_durable_at_that_moment(store_url: str) -> None:
    agent_class = following(ScriptedModel(LONG))
    host, committed = await probed(store_url, agent_class)
    async with host:
        agent = host.get(agent_class, "a")
        heard = []

        class Watchful(Caller):
            def on_event(self, chunk: str) -> None:
                assert (self.request, len(self.chunks)) in committed.chunks
                super().on_event(chunk)

        caller = Watchful()
        asking = asyncio.create_task(agent.chat("Well?", caller))
        await caller.begun.wait()
        async for seq, chunk in agent.follow(caller.request):
            assert (caller.request, seq) in committed.chunks
            heard.append(chunk)
        await asking
        assert heard == caller.chunks
        assert heard == (await stored(host, "Talker/a")).streams[caller.request]
        appends = [batch for batch in committed.batches if batch[0][0] == "streams append"]
        assert len(appends) >= 5, "it came in several flushes"


async def test_while_a_commit_is_held_up_nothing_of_it_is_shown(postgres_url: str) -> None:
    """The lock of another connection holds it up, as a slow disk would."""
    import asyncpg

    begun = asyncio.Event()
    go_on = asyncio.Event()

    class Held(Think):
        chat_recovery = False
        model = ScriptedModel("First second.")

        async def before_turn(self, context: Any) -> None:
            begun.set()
            await go_on.wait()

    server, schema = postgres_url.split("schema=")
    async with hosting(Held, url=postgres_url) as host:
        caller = Caller()
        asking = asyncio.create_task(host.get(Held, "a").chat("Well?", caller))
        await begun.wait()
        other = await asyncpg.connect(server.rstrip("?&"))
        try:
            async with other.transaction():
                await other.execute(f'LOCK TABLE "{schema}".streams IN EXCLUSIVE MODE')
                go_on.set()
                while not await other.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                ):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
                assert caller.chunks == []
                assert caller.ends == []
        finally:
            await other.close()
        await asking
        assert caller.ends == ["done"]
        assert len(caller.chunks) >= 6


@pytest.mark.invariant("E3")
async def test_a_chunk_of_any_size_is_stored_and_shown(world: World) -> None:
    huge = "x" * 3_000_000

    class Talker(Think):
        chat_recovery = False
        model = ScriptedModel(
            Step.text(chunks=["a", huge, "b"]) + Step.call("fetch", {"of": huge}, id="c1"), "Done."
        )

        @tool(effect="read")
        async def fetch(self, of: str) -> str:
            return of

    host = await world.host(Talker)
    caller = Caller()
    agent = host.get(Talker, "a")
    await agent.chat("Well?", caller)
    assert caller.ends == ["done"]
    [said, answer] = await agent.get_messages()
    assert answer.text == f"a{huge}b Done."
    [call] = [part for part in answer.parts if part["type"] == "tool-fetch"]
    assert (len(call["input"]["of"]), len(call["output"])) == (3_000_000, 3_000_000)
    kept = await stored(host, "Talker/a")
    assert kept.streams[caller.request] == caller.chunks
    check_answers(kept)


async def test_an_answer_that_no_row_can_hold_ends_and_the_next_one_is_given(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    agent_class = talker(answering(Step.text(chunks=["x" * 2_000_000] * 40), "Better."))
    host = await sqlite_world.host(agent_class)
    agent = host.get(agent_class, "a")
    turn = await agent.save_messages("Well?")
    assert turn.status in ("error", "interrupted")
    assert (await agent.save_messages("Shorter?")).message.text == "Better."


@pytest.mark.invariant("E1")
@pytest.mark.virtual_time
async def test_what_a_tool_has_done_is_durable_before_it_is_shown_and_before_the_next_step(
    store_url: str,
) -> None:
    durable_at_request: list[bool] = []
    committed: list[Committed] = []

    def answer(messages: list[Any]) -> Step:
        bodies = [
            str(arguments[-1])
            for batch in committed[0].batches
            for name, arguments in batch
            if name == "streams append"
        ]
        durable_at_request.append("tool-output-available" in "".join(bodies))
        if len(durable_at_request) == 3:
            return Step.text("Done.")
        return Step.call("look", id=f"c{len(durable_at_request)}")

    async def look(self: Any) -> str:
        """Look."""
        return "seen"

    agent_class = following(ScriptedModel.answering(answer), look=tool(effect="read")(look))
    host, probe = await probed(store_url, agent_class)
    committed.append(probe)
    async with host:

        class Watchful(Caller):
            def on_event(self, chunk: str) -> None:
                assert (self.request, len(self.chunks)) in probe.chunks
                super().on_event(chunk)

        caller = Watchful()
        await host.get(agent_class, "a").chat("Well?", caller)
        assert caller.ends == ["done"]
    assert durable_at_request == [False, True, True]


BROKEN = """
    CREATE TRIGGER broken BEFORE INSERT ON streams WHEN NEW.body LIKE '%{}%'
    BEGIN SELECT RAISE(ABORT, 'this row cannot be written'); END
"""


@pytest.mark.invariant("E1")
@pytest.mark.virtual_time
async def test_a_tool_outcome_that_cannot_be_stored_is_not_shown_and_leads_to_no_request(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = answering(Step.call("look", id="c1"), "Never.")

    async def look(self: Any) -> str:
        """Look."""
        return "seen"

    agent_class = following(model, look=tool(effect="read")(look))
    caplog.set_level(logging.CRITICAL)
    async with hosting(agent_class, url=sqlite_url) as host:
        agent = host.get(agent_class, "a")
        await agent.get_messages()
        with raw(sqlite_url) as other:
            other.execute(BROKEN.format("tool-output-available"))
        other.close()
        caller = Caller()
        await agent.chat("Well?", caller)
        assert caller.ends == ["interrupted"]
        assert not any("tool-output" in chunk for chunk in caller.chunks)
        await asyncio.sleep(60)
        await host.until_settled()
        assert len(model.requests) == 1
        [entry] = (await stored(host, "Talker/a")).entries
        assert entry.outcome == "interrupted", "and the agent has gone on from what is stored"


@pytest.mark.parametrize("trouble", ["broken", "full", "lost"])
@pytest.mark.virtual_time
async def test_when_the_store_fails_in_the_middle_readers_have_seen_only_what_is_stored(
    sqlite_url: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    text = "One two three four " + "five " * 2000
    agent_class = following(ScriptedModel(Step.text(text, delay=0.01)))
    seen = Seen()
    async with hosting(agent_class, url=sqlite_url) as host:
        agent = host.get(agent_class, "a")
        caller = Caller(enough=5)
        asking = asyncio.create_task(agent.chat("Well?", caller))
        await caller.heard_enough.wait()
        late = asyncio.create_task(_all_of(agent, caller.request))
        db: Any = host.store._db  # type: ignore[attr-defined]
        if trouble == "full":
            (used,) = db.execute("PRAGMA page_count").fetchone()
            db.execute(f"PRAGMA max_page_count = {used + 2}")
        else:
            with raw(sqlite_url) as other:
                other.execute(
                    BROKEN.format("five")
                    if trouble == "broken"
                    else "UPDATE agents SET epoch = epoch + 1, owner = 'another'"
                )
            other.close()
        await asking
        assert caller.ends == ["interrupted"], "nobody was told that the turn is over"
        assert [chunk for _, chunk in await late] == caller.chunks
        for seq, chunk in enumerate(caller.chunks):
            seen.saw(caller.request, seq, chunk)
        if trouble == "full":
            db.execute("PRAGMA max_page_count = 1073741823")
        with raw(sqlite_url) as other:
            kept = "\n".join(body for (body,) in other.execute("SELECT body FROM streams"))
        other.close()
        assert kept.startswith("\n".join(caller.chunks)), "nothing was shown that is not stored"
        await host.until_settled()
    async with hosting(agent_class, url=sqlite_url, life="2") as host:
        await host.until_settled()
        kept_rows = await stored(host, "Talker/a")
        check_seen(kept_rows, seen)
        check_answers(kept_rows)
        assert [entry.outcome for entry in kept_rows.entries] == ["interrupted"]


async def _all_of(agent: Any, request: str) -> list[tuple[int, str]]:
    return [item async for item in agent.follow(request)]


# --- turns that have ended -----------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_an_ended_turn_is_read_from_the_store_as_it_was(world: World) -> None:
    agent_class = following(ScriptedModel(LONG))
    host = await world.host(agent_class, idle_timeout=1)
    agent = host.get(agent_class, "a")
    caller = Caller()
    await agent.chat("Well?", caller)
    whole = list(enumerate(caller.chunks))
    for after in (0, 3, len(whole), len(whole) + 5):
        assert [item async for item in agent.follow(caller.request, after)] == whole[after:]
    await asyncio.sleep(30)
    assert host.statistics().active == 0
    assert [item async for item in agent.follow(caller.request)] == whole
    await asyncio.sleep(15 * 60)
    await host.until_settled()
    assert [item async for item in agent.follow(caller.request)] == []


@pytest.mark.invariant("E16", "E23")
@pytest.mark.virtual_time
async def test_streams_go_ten_minutes_after_their_turn_also_if_the_agent_is_used_all_day(
    sqlite_world: World,
) -> None:
    agent_class = following(ScriptedModel("Well."))
    host = await sqlite_world.host(agent_class, idle_timeout=1)
    agent = host.get(agent_class, "a")
    most = 0
    for _ in range(100):
        await agent.save_messages("Well?")
        most = max(most, len((await stored(host, "Talker/a")).streams))
        await asyncio.sleep(5 * 60)
        assert host.statistics().active == 0, "each turn has an activation of its own"
    assert most <= 5
    await asyncio.sleep(20 * 60)
    assert (await stored(host, "Talker/a")).streams == {}
    assert await alarm_rows(host) == [], "and the clean-up rests"


@pytest.mark.invariant("E16")
@pytest.mark.virtual_time
async def test_a_turn_that_runs_for_hours_keeps_its_stream(sqlite_world: World) -> None:
    agent_class = following(answering("Well.", Step.text("One two three.", delay=3600)))
    host = await sqlite_world.host(agent_class)
    agent = host.get(agent_class, "a")
    await agent.save_messages("Quickly?")
    caller = Caller()
    await agent.chat("Slowly?", caller)
    assert (await stored(host, "Talker/a")).streams == {caller.request: caller.chunks}


@pytest.mark.virtual_time
async def test_the_stream_of_a_deleted_submission_goes_too(world: World) -> None:
    agent_class = following(ScriptedModel("Well."))
    host = await world.host(agent_class)
    agent = host.get(agent_class, "a")
    await agent.submit_messages("Well?")
    await host.until_settled()
    assert await agent.delete_submissions() == 1
    await asyncio.sleep(11 * 60)
    await host.until_settled()
    assert await rows(host, "streams") == []
    assert await alarm_rows(host) == []


# --- turns that were interrupted -----------------------------------------------------------------


async def break_off(url: str, agent_class: type[Any], said: Any, chunks: int, life: str) -> Caller:
    """A host that goes away when so many chunks of the answer have been heard."""
    caller = Caller(enough=chunks)
    async with hosting(agent_class, url=url, life=life, shutdown_timeout=0) as host:
        asking = asyncio.create_task(host.get(agent_class, "a").chat(said, caller))
        await caller.heard_enough.wait()
    await asyncio.gather(asking, return_exceptions=True)
    return caller


@pytest.mark.invariant("E14")
@pytest.mark.virtual_time
async def test_an_answer_has_one_id_live_stored_and_recovered(store_url: str) -> None:
    agent_class = following(ScriptedModel(LONG))
    caller = await break_off(store_url, agent_class, "Well?", 6, "1")
    live = json.loads(caller.chunks[0])["messageId"]
    for life in ("2", "3"):
        async with hosting(agent_class, url=store_url, life=life) as host:
            await host.until_settled()
            agent = host.get(agent_class, "a")
            assert [each.id for each in await agent.get_messages()][1:] == [live]
            [replayed, *_] = [chunk async for _, chunk in agent.follow(caller.request)]
            assert json.loads(replayed)["messageId"] == live
            assert (await stored(host, "Talker/a")).entries[0].message_id == live


@pytest.mark.invariant("E14")
@pytest.mark.virtual_time
async def test_an_answer_has_one_id_live_and_settled(sqlite_world: World) -> None:
    agent_class = following(ScriptedModel("Well."))
    host = await sqlite_world.host(agent_class)
    agent = host.get(agent_class, "a")
    caller = Caller()
    await agent.chat("Well?", caller)
    [_, answer] = await agent.get_messages()
    assert json.loads(caller.chunks[0])["messageId"] == answer.id


@pytest.mark.invariant("F1")
@pytest.mark.virtual_time
async def test_rebuilding_an_answer_again_changes_nothing(store_url: str) -> None:
    agent_class = following(ScriptedModel(LONG))
    await break_off(store_url, agent_class, "Well?", 9, "1")
    rebuilt = []
    for life in ("2", "3", "4"):
        async with hosting(agent_class, url=store_url, life=life) as host:
            await host.until_settled()
            kept = await stored(host, "Talker/a")
            rebuilt.append([(row.id, row.parent, row.body) for row in kept.path])
            await host.get(agent_class, "a").get_messages()
            await meddle(  # as if the commit of the end had never been
                agent_of(host, agent_class),
                "UPDATE inbox SET state = 'running', outcome = NULL, error = NULL, ended_at = NULL",
            )
    assert len(rebuilt[0]) == 2
    assert rebuilt == [rebuilt[0]] * 3


@pytest.mark.invariant("F2")
@pytest.mark.virtual_time
async def test_the_rest_of_a_second_answer_does_not_get_into_the_first(store_url: str) -> None:
    agent_class = following(answering("First answer.", LONG))
    async with hosting(agent_class, url=store_url) as host:
        await host.get(agent_class, "a").save_messages("One?")
        before = (await stored(host, "Talker/a")).path
    caller = await break_off(store_url, agent_class, "Two?", 9, "2")
    async with hosting(agent_class, url=store_url, life="3") as host:
        await host.until_settled()
        kept = await stored(host, "Talker/a")
        assert kept.path[:2] == before
        assert [row.role for row in kept.path] == ["user", "assistant", "user", "assistant"]
        assert kept.path[3].text
        assert kept.path[3].status == "interrupted"
        check_answers(kept)
        assert kept.streams[caller.request][: len(caller.chunks)] == caller.chunks


@pytest.mark.invariant("F3")
@pytest.mark.virtual_time
async def test_the_rest_of_a_continuation_extends_its_own_message_and_no_other(
    world: World,
) -> None:
    more = Step.text(" More and more and more.", delay=0.01)
    agent_class = following(answering("One.", "Two.", "Three.", lambda _: more))
    host = await world.host(agent_class, shutdown_timeout=0)
    agent = host.get(agent_class, "a")
    for prompt in ("1?", "2?", "3?"):
        await agent.save_messages(prompt)
    before = (await stored(host, "Talker/a")).path
    continuing = asyncio.create_task(agent.continue_last_turn())
    await asyncio.sleep(0.035)
    await world.stop()
    await asyncio.gather(continuing, return_exceptions=True)
    host = await world.next_life()
    await host.until_settled()
    kept = await stored(host, "Talker/a")
    assert kept.path[:5] == before[:5]
    assert len(kept.path) == 6
    assert kept.path[5].id == before[5].id
    assert kept.path[5].text.startswith("Three. More")
    assert len(kept.path[5].text) < len("Three. More and more and more.")
    assert kept.entries[3].outcome == "interrupted"
    check_answers(kept)


class SlowToClose(FunctionToolset[Any]):
    """Tools whose connection takes its time to close."""

    async def __aexit__(self, *details: Any) -> bool | None:
        await asyncio.sleep(1)
        return await super().__aexit__(*details)


@pytest.mark.invariant("C6", "F5", "F6")
@pytest.mark.virtual_time
async def test_the_end_of_a_turn_is_one_commit(store_url: str) -> None:
    """So no kill finds a whole stream without its message, or a message without its outcome."""
    agent_class = following(ScriptedModel(LONG), get_tools=lambda self: SlowToClose())
    host, committed = await probed(store_url, agent_class)
    async with host:
        assert (await host.get(agent_class, "a").save_messages("Well?")).status == "completed"
    finishing = [
        [name for name, _ in batch]
        for batch in committed.batches
        if any(name == "streams append" and '"finish"' in str(a[-1]) for name, a in batch)
    ]
    assert finishing == [
        ["streams append", "inbox end", "messages put", "facts set", "alarms set by"]
    ]
    ends = [batch for batch in committed.batches if any(name == "inbox end" for name, _ in batch)]
    assert len(ends) == 1


@pytest.mark.invariant("F8")
@pytest.mark.parametrize(
    "beginning",
    [
        Step.stalls(1),
        Step.call("look", '{"at": "half', id="c1"),
        Step.text(chunks=[""]),
    ],
)
@pytest.mark.virtual_time
async def test_a_rest_with_nothing_in_it_leaves_no_empty_bubble(
    world: World, beginning: Step
) -> None:
    agent_class = following(answering(beginning + Step.stalls(), "Better."))
    caller = Caller(enough=2)
    host = await world.host(agent_class, shutdown_timeout=0)
    asking = asyncio.create_task(host.get(agent_class, "a").chat("Well?", caller))
    await caller.heard_enough.wait()
    await asyncio.sleep(10)
    await world.stop()
    await asyncio.gather(asking, return_exceptions=True)
    host = await world.next_life()
    await host.until_settled()
    kept = await stored(host, "Talker/a")
    assert [row.role for row in kept.messages.values()] == ["user"]
    assert (kept.entries[0].outcome, kept.entries[0].message_id) == ("interrupted", None)
    agent = host.get(agent_class, "a")
    assert (await agent.save_messages("Again?")).status == "completed"
    assert [each.role for each in await agent.get_messages()] == ["user", "user", "assistant"]


class Meddler(Agent):
    """Somebody else on the same store."""

    async def exist(self) -> None: ...


@pytest.mark.invariant("F9")
@pytest.mark.parametrize("damage", ["", "no JSON", '{"type":', "[1]", "7\n8\n9\n10", "\x01\n\n"])
@pytest.mark.virtual_time
async def test_a_damaged_row_is_skipped_and_the_rest_is_kept(store_url: str, damage: str) -> None:
    agent_class = following(ScriptedModel(Step.text("One two three four five six.", delay=0.01)))
    caller = await break_off(store_url, agent_class, "Well?", 8, "1")
    place = next(n for n, chunk in enumerate(caller.chunks) if '"three "' in chunk)

    async with hosting(Meddler, url=store_url, life="2") as host:
        await host.get(Meddler, "m").exist()
        meddler = agent_of(host, Meddler, "m")
        await meddle(meddler, "UPDATE streams SET body = ? WHERE seq = ?", damage, place)
    async with hosting(agent_class, url=store_url, life="3") as host:
        await host.until_settled()
        live = host.get(agent_class, "a")
        [_, answer] = await live.get_messages()
        assert answer.text == "One two four five "
        replayed = [item async for item in live.follow(caller.request)]
        others = [(seq, chunk) for seq, chunk in enumerate(caller.chunks) if seq != place]
        assert [item for item in replayed if item[0] != place][: len(others)] == others
        assert (await live.save_messages("Again?")).status == "completed"


# --- readers in the middle of everything ---------------------------------------------------------


@pytest.mark.virtual_time
async def test_many_readers_of_a_live_turn(world: World) -> None:
    agent_class = following(ScriptedModel(Step.text("word " * 50, delay=0.01)))
    host = await world.host(agent_class)
    agent = host.get(agent_class, "a")
    caller = Caller(enough=3)
    asking = asyncio.create_task(agent.chat("Well?", caller))
    await caller.heard_enough.wait()

    async def read(after: int, pause: float, most: int) -> list[tuple[int, str]]:
        heard = []
        async with aclosing(agent.follow(caller.request, after)) as chunks:
            async for item in chunks:
                heard.append(item)
                await asyncio.sleep(pause)
                if len(heard) == most:
                    break
        return heard

    plans = [
        (after, pause, most)
        for after in (0, 2, 17, 40)
        for pause in (0, 0.003, 0.05)
        for most in (5, 1000)
    ]
    cancelled = [asyncio.create_task(read(0, 1, 1000)) for _ in range(5)]
    reading = [asyncio.create_task(read(*plan)) for plan in plans]
    await asyncio.sleep(0.1)
    for task in cancelled:
        task.cancel()
    await asking
    whole = list(enumerate(caller.chunks))
    for (after, _, most), task in zip(plans, reading, strict=True):
        assert await task == whole[after:][:most]
    await asyncio.gather(*cancelled, return_exceptions=True)


@pytest.mark.virtual_time
async def test_going_back_to_the_old_answer_while_a_new_one_is_made_leaves_both_where_they_are(
    world: World,
) -> None:
    agent_class = following(answering("Old.", Step.text("New one.", delay=1)))
    host = await world.host(agent_class)
    agent = host.get(agent_class, "a")
    old = (await agent.save_messages("Well?")).message
    trying = asyncio.create_task(agent.regenerate())
    await asyncio.sleep(1.5)
    assert await agent.select_branch(old.id)
    new = (await trying).message
    assert [each.id for each in await agent.get_branches(old.id)] == [old.id, new.id]
    assert [each.text for each in await agent.get_messages()] == ["Well?", "Old."]
    kept = await stored(host, "Talker/a")
    assert [row.text for row in kept.path] == ["Well?", "Old."]
