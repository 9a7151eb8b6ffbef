"""What code inside a turn may ask of its own agent and of others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import answering, asked, counts, said, talker

from outlast import InsideTurn, Think, tool
from outlast.testing import ScriptedModel, Step
from support import World

pytestmark = pytest.mark.virtual_time


class Callback:
    def on_event(self, chunk: str) -> None: ...


class Inside(Think):
    """Its tool asks the agent itself for something."""

    caught: list[Any] = []

    @tool
    async def ask(self, how: str) -> str:
        try:
            if how == "save":
                await self.save_messages("inner")
            elif how == "chat":
                await self.chat("inner", Callback())
            elif how == "stream":
                async for _ in self.stream("inner"):
                    pass
            elif how == "continue":
                await self.continue_last_turn()
            elif how == "regenerate":
                await self.regenerate()
            elif how == "run":
                await self.run_turn("inner")
            elif how == "stub":
                await Inside.stub.save_messages("inner")
            elif how == "task":
                await asyncio.create_task(self.save_messages("inner"))
            elif how == "submit":
                return (await self.submit_messages("inner")).status
            elif how == "add":
                return str(len(await self.add_messages("inner")))
            elif how == "later":
                self.run_fiber("later", self.later)
        except InsideTurn as error:
            Inside.caught.append(str(error))
            return "refused"
        return "fine"

    async def later(self, fiber: Any) -> None:
        await asyncio.sleep(10)  # the turn is over by then
        Inside.caught.append((await self.save_messages("inner")).status)

    stub: Any = None


@pytest.mark.invariant("D6")
@pytest.mark.parametrize(
    "how", ["save", "chat", "stream", "continue", "regenerate", "run", "stub", "task"]
)
async def test_waiting_for_a_turn_inside_a_turn_raises_at_once(world: World, how: str) -> None:
    Inside.caught = []
    Inside.model = ScriptedModel.calls("ask", how=how).then("Done.")
    host = await world.host(Inside)
    Inside.stub = host.get(Inside, "a")
    async with asyncio.timeout(5):
        turn = await host.get(Inside, "a").save_messages("go")
    assert (turn.status, turn.message.text) == ("completed", "Done.")
    assert len(Inside.caught) == 1
    assert "submit_messages" in Inside.caught[0]
    assert await counts(host, "inbox", "messages") == {"inbox": 1, "messages": 2}


@pytest.mark.invariant("D7")
async def test_what_is_submitted_inside_a_turn_runs_after_it(world: World) -> None:
    Inside.model = model = answering(Step.calls("ask", how="submit"), "Done.", "Inner done.")
    host = await world.host(Inside)
    a = host.get(Inside, "a")
    await a.save_messages("go")
    await host.until_settled()
    assert said(await a.get_messages()) == [
        "user: go",
        "assistant: Done.",
        "user: inner",
        "assistant: Inner done.",
    ]
    assert [asked(request)[-1] for request in model.requests] == ["go", "go", "inner"]


@pytest.mark.invariant("D7")
async def test_what_is_added_inside_a_turn_stays_in_the_conversation(world: World) -> None:
    Inside.model = model = answering(Step.calls("ask", how="add"), "Done.", "Next.")
    host = await world.host(Inside)
    await host.get(Inside, "a").save_messages("go")
    before = said(await host.get(Inside, "a").get_messages())
    assert before == ["user: go", "assistant: Done.", "user: inner"]
    host = await world.next_life()
    a = host.get(Inside, "a")
    assert said(await a.get_messages()) == before
    await a.save_messages("next")
    assert asked(model.requests[-1]) == ["go", "inner", "next"]


async def test_work_that_a_turn_left_behind_may_wait_for_one_when_it_has_ended(
    world: World,
) -> None:
    Inside.caught = []
    Inside.model = answering(Step.calls("ask", how="later"), "Done.")
    host = await world.host(Inside)
    await host.get(Inside, "a").save_messages("go")
    await host.until_settled()
    assert Inside.caught == ["completed"]


# --- several agents ------------------------------------------------------------------------------


class Child(Think):
    model = ScriptedModel("I am the child.", by="request", repeat=True)


class Parent(Think):
    sub_agents = [Child]
    model = ScriptedModel.calls("delegate", task="think").then("It is done.")

    @tool
    async def delegate(self, task: str) -> str:
        child = await self.sub_agent(Child, "c")
        turn = await child.save_messages(task)
        assert turn.message is not None
        return turn.message.text

    async def told(self) -> list[str]:
        return said(await (await self.sub_agent(Child, "c")).get_messages())


async def test_a_tool_may_wait_for_a_turn_of_a_sub_agent(world: World) -> None:
    host = await world.host(Parent)
    p = host.get(Parent, "p")
    turn = await p.save_messages("go")
    assert turn.message.text == "It is done."
    (call,) = [part for part in turn.message.parts if part["type"] == "tool-delegate"]
    assert call["output"] == "I am the child."
    assert await p.told() == ["user: think", "assistant: I am the child."]


async def test_turns_of_different_agents_run_side_by_side(world: World) -> None:
    Talker = talker(answering(Step.text("one two three four", delay=10)))
    host = await world.host(Talker)
    begun = asyncio.get_running_loop().time()
    turns = await asyncio.gather(
        *(host.get(Talker, f"t{n}").save_messages(f"u{n}") for n in range(20))
    )
    assert {turn.status for turn in turns} == {"completed"}
    assert asyncio.get_running_loop().time() - begun < 45
    for n in range(20):
        first = (await host.get(Talker, f"t{n}").get_messages())[0]
        assert first.text == f"u{n}"


class Asked(Think):
    """A child whose turn waits for one of its parent."""

    model = ScriptedModel.calls("ask_back").then("I was refused.")

    @tool
    async def ask_back(self) -> str:
        parent = self.parent_agent(Asker)
        try:
            await parent.save_messages("and you?")
        except InsideTurn as error:
            return str(error)
        return "answered"


class Asker(Think):
    sub_agents = [Asked]
    model = ScriptedModel.calls("delegate").then("It is done.")

    @tool
    async def delegate(self) -> str:
        turn = await (await self.sub_agent(Asked, "c")).save_messages("think")
        return str([part["output"] for part in turn.message.parts if "output" in part])


async def test_agents_whose_turns_would_wait_for_each_other_are_told(world: World) -> None:
    host = await world.host(Asker)
    asker = host.get(Asker, "p")
    turn = await asker.save_messages("go")
    assert turn.message.text == "It is done."
    (call,) = [part for part in turn.message.parts if part["type"] == "tool-delegate"]
    assert "because Asker/p waits" in call["output"]
    assert said(await asker.get_messages()) == ["user: go", "assistant: It is done."]
    assert (await asker.save_messages("again")).status == "completed"
