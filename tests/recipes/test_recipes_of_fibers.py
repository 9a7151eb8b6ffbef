"""How applications use fibers: each example of the guide, with what it promises when the process dies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import Agent, FiberContext, FiberRecoveryContext
from support import World, fiber_rows

pytestmark = pytest.mark.virtual_time


# --- inline, and fire and forget -----------------------------------------------------------------


class Worker(Agent):
    done: list[str] = []

    async def inline(self) -> Any:
        async def work(fiber: FiberContext) -> dict[str, int]:
            await fiber.stash({"progress": 50})
            return {"answer": 42}

        return await self.run_fiber("work", work)

    async def background(self) -> None:
        async def long_running(fiber: FiberContext) -> None:
            await asyncio.sleep(100)
            self.done.append("background")

        self.run_fiber("background", long_running)

    async def failing(self) -> None:
        async def fail(fiber: FiberContext) -> None:
            raise ZeroDivisionError("as it happens")

        await self.run_fiber("failing", fail)


async def test_a_fiber_that_is_awaited_gives_its_result_and_leaves_no_row(world: World) -> None:
    host = await world.host(Worker)
    assert await host.get(Worker, "a").inline() == {"answer": 42}
    assert await fiber_rows(host) == []


async def test_a_fiber_that_nobody_awaits_goes_on_and_keeps_its_agent_in_memory(
    world: World,
) -> None:
    Worker.done.clear()
    host = await world.host(Worker, idle_timeout=1)
    await host.get(Worker, "a").background()
    assert Worker.done == []
    await asyncio.sleep(50)
    assert host.statistics().active == 1, "it is not evicted while the fiber runs"
    await host.until_settled()
    assert Worker.done == ["background"]
    assert await fiber_rows(host) == []


async def test_an_error_reaches_whoever_awaits_and_is_not_retried(world: World) -> None:
    host = await world.host(Worker)
    with pytest.raises(ZeroDivisionError, match="as it happens"):
        await host.get(Worker, "a").failing()
    assert await fiber_rows(host) == []


# --- what is stashed -----------------------------------------------------------------------------

PATTERNS = {
    "the position in a loop": {
        "completed_steps": ["search", "analyze"],
        "pending_steps": ["synthesize", "review"],
        "intermediate_results": {"search": ["a", "b"], "analyze": [1, 2.5, None]},
    },
    "what a provider needs": {"response_id": "resp_abc123"},
    "cursors of sessions elsewhere": {
        "cursors": {
            "sandbox": {"session_id": "sess_xyz", "last_log_id": "log_789"},
            "llm_stream": {"response_id": "resp_abc", "last_chunk_index": 42},
        }
    },
}


@pytest.mark.parametrize("what", PATTERNS)
async def test_what_was_stashed_comes_back_whole_after_a_death(world: World, what: str) -> None:
    found: list[tuple[str, Any]] = []

    class Stashing(Agent):
        async def begin(self) -> None:
            async def work(fiber: FiberContext) -> None:
                await fiber.stash({"replaced": "by the next one"})
                await self.stash(PATTERNS[what])  # the fiber is found by itself
                await asyncio.sleep(1000)

            self.run_fiber("work", work)

        async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
            found.append((fiber.name, fiber.snapshot))

    host = await world.host(Stashing, shutdown_timeout=0)
    await host.get(Stashing, "a").begin()
    await asyncio.sleep(1)
    host = await world.next_life()
    await host.until_settled()
    assert await fiber_rows(host) == [], "the hook has seen to it"
    await world.stop()
    assert found == [("work", PATTERNS[what])]


async def test_each_of_several_fibers_has_a_snapshot_of_its_own(world: World) -> None:
    found: dict[str, Any] = {}

    class Several(Agent):
        async def begin(self) -> None:
            for name in ("one", "two", "three"):
                self.run_fiber(name, self.work)

        async def work(self, fiber: FiberContext) -> None:
            for step in range(3):
                await asyncio.sleep(0.1)
                await self.stash({"fiber": fiber.id, "step": step})
            await asyncio.sleep(1000)

        async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
            found[fiber.name] = (fiber.id, fiber.snapshot)

    host = await world.host(Several, shutdown_timeout=0)
    await host.get(Several, "a").begin()
    await asyncio.sleep(1)
    host = await world.next_life()
    await host.until_settled()
    await world.stop()
    assert sorted(found) == ["one", "three", "two"]
    assert all(snapshot == {"fiber": id, "step": 2} for id, snapshot in found.values())


# --- research with checkpoints -------------------------------------------------------------------


class ResearchAgent(Agent):
    """Three steps, each of them told to everybody who is connected."""

    executed: list[str] = []
    sent: list[Any] = []
    steps = ("search", "analyze", "synthesize")

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        if fiber.name != "research":
            return
        if fiber.snapshot:  # go on behind the last checkpoint
            self.go_on(fiber)

    def go_on(self, fiber: FiberRecoveryContext) -> None:
        fiber.resume(self.do_research)

    async def start_research(self, topic: str) -> None:
        self.run_fiber("research", self.do_research, {"topic": topic, "completed_steps": []})

    async def do_research(self, fiber: FiberContext, plan: dict[str, Any]) -> None:
        completed = list(plan["completed_steps"])
        for step in self.steps[len(completed) :]:
            result = await self.execute_step(step, plan["topic"])
            completed.append(step)
            await fiber.stash({"topic": plan["topic"], "completed_steps": completed})
            self.broadcast({"type": "progress", "step": step, "result": result})
        self.broadcast({"type": "complete"})

    async def execute_step(self, step: str, topic: str) -> str:
        self.executed.append(step)
        await asyncio.sleep(1)
        return f"{step} of {topic}"

    def broadcast(self, message: Any, *, without: Any = ()) -> None:
        self.sent.append(message)
        super().broadcast(message, without=without)


class StartingAnew(ResearchAgent):
    """The same, with another fiber in place of the one that was interrupted."""

    def go_on(self, fiber: FiberRecoveryContext) -> None:
        self.run_fiber("research", self.do_research, fiber.snapshot)


@pytest.mark.parametrize("Research", [ResearchAgent, StartingAnew])
@pytest.mark.parametrize("after", [0.5, 1.5, 2.5])
async def test_research_goes_on_behind_its_last_checkpoint(
    world: World, after: float, Research: type[ResearchAgent]
) -> None:
    ResearchAgent.executed.clear()
    ResearchAgent.sent.clear()
    host = await world.host(Research, shutdown_timeout=0)
    await host.get(Research, "a").start_research("owls")
    await asyncio.sleep(after)
    await world.stop()
    done = int(after)
    assert len(ResearchAgent.sent) == done
    host = await world.next_life()
    await host.until_settled()
    assert await fiber_rows(host) == []
    await world.stop()
    steps = list(ResearchAgent.steps)
    assert ResearchAgent.executed == [*steps[: done + 1], *steps[done:]], "one step is done again"
    assert [message.get("step") for message in ResearchAgent.sent] == [*steps, None]
    assert ResearchAgent.sent[0]["result"] == "search of owls"
    assert ResearchAgent.sent[-1] == {"type": "complete"}


# --- staying in memory ---------------------------------------------------------------------------


class Polling(Agent):
    async def hold(self) -> None:
        dispose = self.keep_alive()
        asyncio.get_running_loop().call_later(100, dispose.release)

    async def compute(self) -> int:
        async def work() -> int:
            await asyncio.sleep(100)
            return 42

        return await self.keep_alive_while(work)


async def test_an_agent_stays_in_memory_until_its_lease_is_given_back(world: World) -> None:
    host = await world.host(Polling, idle_timeout=1)
    agent = host.get(Polling, "a")
    await agent.hold()
    await asyncio.sleep(90)
    assert host.statistics().active == 1
    assert await agent.get_schedules() == [], "and no schedule is made for that"
    await asyncio.sleep(20)
    assert host.statistics().active == 0


async def test_keep_alive_while_gives_the_result_and_lets_go(world: World) -> None:
    host = await world.host(Polling, idle_timeout=1)
    assert await host.get(Polling, "a").compute() == 42
    await asyncio.sleep(5)
    assert host.statistics().active == 0
