"""A `Commit`: writes of several owners, and what follows once they are durable or never will be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import Agent, CommitFailed
from outlast.agent.agent import parts_of
from outlast.agent.commit import Commit, Commits
from outlast.store.operations import BulkStatement, Operation
from support import hosting


class Writer(Agent):
    async def do(self, function: Any) -> Any:
        return await function(parts_of(self).commits, self)


def put(key: str) -> Operation:
    row = f"('Writer/w', '{key}', 1, '1')"
    sql = f"INSERT INTO storage (agent, key, size, value) VALUES {row}"
    return BulkStatement("storage put", sql, sql), ()


BROKEN: Operation = (BulkStatement("storage break", "DELETE FROM none", "DELETE FROM none"), ())


def filled(commits: Commits, said: list[str], *names: str) -> Commit:
    """A commit to which each name adds a row, and both of its endings."""
    commit = commits.new()
    for name in names:
        commit.write(put(name))
        commit.then(lambda name=name: said.append(name))
        commit.undo(lambda name=name: said.append(f"not {name}"))
    return commit


async def test_what_follows_runs_in_order_once_it_is_durable(store_url: str) -> None:
    async with hosting(Writer, url=store_url) as host:

        async def write(commits: Commits, agent: Writer) -> list[str]:
            said: list[str] = []
            outcome = filled(commits, said, "a", "b", "c").submit()
            assert said == [], "it is handed over, and not durable yet"
            assert await outcome == (1, 1, 1)
            assert sorted(await agent.storage.list()) == ["a", "b", "c"]
            return said

        assert await host.get(Writer, "w").do(write) == ["a", "b", "c"]


async def test_it_runs_though_nobody_waits(sqlite_url: str) -> None:
    async with hosting(Writer, url=sqlite_url) as host:
        durable = asyncio.Event()

        async def write(commits: Commits, agent: Writer) -> None:
            commit = commits.new()
            commit.write(put("a"))
            commit.then(durable.set)
            commit.submit()

        await host.get(Writer, "w").do(write)
        await asyncio.wait_for(durable.wait(), 10)


async def test_what_will_never_be_durable_is_undone_the_last_first(store_url: str) -> None:
    async with hosting(Writer, url=store_url) as host:
        said: list[str] = []
        failures: list[BaseException | None] = []

        async def write(commits: Commits, agent: Writer) -> None:
            commit = filled(commits, said, "a", "b")
            commit.write(BROKEN)
            commit.undo(lambda: failures.append(commit.failure))
            await commit.stored()

        with pytest.raises(CommitFailed):
            await host.get(Writer, "w").do(write)
        assert said == ["not b", "not a"]
        assert isinstance(failures[0], CommitFailed)


async def test_what_cannot_even_be_handed_over_is_undone_at_once(sqlite_url: str) -> None:
    async with hosting(Writer, url=sqlite_url) as host:

        async def write(commits: Commits, agent: Writer) -> list[str]:
            said: list[str] = []
            commit = filled(commits, said, "a")
            commits.activation.ended = RuntimeError("it is over")
            with pytest.raises(RuntimeError, match="it is over"):
                commit.submit()
            commits.activation.ended = None
            return said

        assert await host.get(Writer, "w").do(write) == ["not a"]


async def test_a_commit_that_is_given_up_writes_nothing(sqlite_url: str) -> None:
    async with hosting(Writer, url=sqlite_url) as host:

        async def write(commits: Commits, agent: Writer) -> tuple[list[str], dict[str, Any]]:
            said: list[str] = []
            filled(commits, said, "a", "b").give_up(ValueError("changed its mind"))
            return said, await agent.storage.list()

        assert await host.get(Writer, "w").do(write) == (["not b", "not a"], {})


async def test_one_that_rides_with_another_has_its_outcome(store_url: str) -> None:
    async with hosting(Writer, url=store_url) as host:

        async def write(commits: Commits, agent: Writer) -> tuple[list[str], list[str]]:
            said: list[str] = []
            first, second = filled(commits, said, "a"), filled(commits, said, "b")
            first.write(*second.operations)
            first.follow(second)
            await first.stored()
            return said, sorted(await agent.storage.list())

        assert await host.get(Writer, "w").do(write) == (["a", "b"], ["a", "b"])


async def test_the_outcome_of_a_batch_that_another_wrote_can_be_told_to_it(sqlite_url: str) -> None:
    async with hosting(Writer, url=sqlite_url) as host:

        async def write(commits: Commits, agent: Writer) -> list[str]:
            said: list[str] = []
            good, bad = filled(commits, said, "a"), filled(commits, said, "b")
            outcome = commits.commit(good.operations)
            outcome.add_done_callback(good.conclude)
            await outcome
            failed: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
            failed.set_exception(CommitFailed("no"))
            bad.conclude(failed)
            return said

        assert await host.get(Writer, "w").do(write) == ["a", "not b"]


async def test_inside_a_block_the_end_of_the_block_decides(store_url: str) -> None:
    async with hosting(Writer, url=store_url) as host:

        async def write(commits: Commits, agent: Writer) -> list[str]:
            said: list[str] = []
            async with agent.commit():
                await commits.write([put("a")], lambda: said.append("a"))
                outside = filled(commits, said, "b")
                await outside.stored()
                assert said == ["b"], "a commit of its own does not wait for the block"
            with pytest.raises(ZeroDivisionError):
                async with agent.commit():
                    await commits.write([put("c")], lambda: said.append("c"))
                    commits.current_or_new().undo(lambda: said.append("not c"))
                    1 / 0  # noqa: B018
            return said

        assert await host.get(Writer, "w").do(write) == ["b", "a", "not c"]
