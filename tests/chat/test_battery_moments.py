"""What a battery adds to a turn and to its durable moments, and that its errors fail no turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outlast import Think, tool
from outlast.agent.agent import parts_of
from outlast.agent.battery import Battery, BatteryPart
from outlast.agent.commit import Commit
from outlast.agent.events import BatteryFailed
from outlast.chat.tools.contribution import Contribution
from outlast.chat.turn.part import ChatPart
from outlast.store.operations import Query, Statement
from outlast.store.schema import Schema
from outlast.testing import ScriptedModel, Step
from support import World, listen

SCHEMA = Schema(
    "diary",
    {
        "0001_diary.sql": """
            CREATE TABLE diary (agent TEXT NOT NULL, number INTEGER NOT NULL, what TEXT NOT NULL,
                PRIMARY KEY (agent, number));
        """
    },
    owned={"diary": "agent"},
)
ADD = Statement.same(
    "diary add",
    "agent text, number bigint, what text",
    "INSERT INTO diary (agent, number, what) VALUES (:agent, :number, :what)",
    key=2,
    expect=True,
)
ALL = Query.same("SELECT what FROM diary ORDER BY number")
MOMENTS = ("accepted", "claimed", "settled", "cleared")


class DiaryPart(BatteryPart, ChatPart):
    """Writes a row in each durable moment, and fails in those that it was told to."""

    fails_in: frozenset[str] = frozenset()
    number = 0

    def write(self, commit: Commit, what: str) -> None:
        type(self).number += 1
        commit.write((ADD, (self.address, self.number, what)))
        self._may_fail(what.partition(" ")[0])

    def _may_fail(self, moment: str) -> None:
        if moment in self.fails_in:
            raise ValueError(f"{moment} on purpose")

    def accepted(self, commit: Commit, entry: Any) -> None:
        self.write(commit, f"accepted {entry.origin}")

    def claimed(self, commit: Commit, turn: Any) -> None:
        self.write(commit, "claimed")

    def settled(self, commit: Commit, settlement: Any) -> None:
        self.write(commit, f"settled {settlement.end.status}")

    def cleared(self, commit: Commit) -> None:
        self.write(commit, "cleared")

    async def contribute(self, turn: Any) -> Contribution:
        self._may_fail("contribute")
        return Contribution(
            tools=[self.write_diary],
            sections=["You keep a diary."],
            capabilities=["It is private."],
        )

    def shown(self, path: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        self._may_fail("shown")
        return path[-1:]

    @tool(effect="read")
    async def write_diary(self, text: str) -> str:
        """Write into the diary."""
        return f"Dear diary, {text}"


class HasDiary(Think):
    battery = Battery(name="diary", part=DiaryPart, schema=SCHEMA)


class Writer(HasDiary):
    model = ScriptedModel("Hello.", repeat=True)
    system_prompt = "You are a writer."


@pytest.fixture(autouse=True)
def nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiaryPart, "fails_in", frozenset())


async def test_it_writes_in_the_commits_of_the_moments(world: World) -> None:
    host = await world.host(Writer)
    writer = host.get(Writer, "w")
    assert (await writer.save_messages("Hi")).status == "completed"
    await writer.clear_messages()
    said = [what for (what,) in await host.store.fetch(ALL)]
    assert said == ["accepted save", "claimed", "settled completed", "cleared"]


async def test_it_gives_the_turn_tools_sections_and_capabilities(sqlite_world: World) -> None:
    model = ScriptedModel(Step.call("write_diary", {"text": "it rains"}), "Written.")

    class Diarist(HasDiary):
        system_prompt = "You are a writer."

    Diarist.model = model
    host = await sqlite_world.host(Diarist)
    turn = await host.get(Diarist, "d").save_messages("Write")
    assert turn.message is not None
    (call,) = [part for part in turn.message.parts if part["type"] == "tool-write_diary"]
    assert call["output"] == "Dear diary, it rains"
    system = model.requests[0].instructions
    assert system.startswith("You are a writer.\n\nYou keep a diary.")
    assert "It is private." in system


async def test_it_may_shorten_what_the_model_is_shown(sqlite_world: World) -> None:
    model = ScriptedModel("One.", "Two.")

    class Forgetful(HasDiary): ...

    Forgetful.model = model
    host = await sqlite_world.host(Forgetful)
    for text in ("First", "Second"):
        await host.get(Forgetful, "f").save_messages(text)
    assert "First" not in repr(model.requests[1].messages)


@pytest.mark.parametrize("moment", [*MOMENTS, "contribute", "shown"])
async def test_an_error_in_any_of_them_fails_no_turn(
    world: World, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiaryPart, "fails_in", frozenset({moment}))
    host = await world.host(Writer)
    failed = listen(host, BatteryFailed)
    writer = host.get(Writer, "w")
    assert (await writer.save_messages("Hi")).status == "completed"
    await writer.clear_messages()
    assert await writer.get_messages() == []
    said = [what.partition(" ")[0] for (what,) in await host.store.fetch(ALL)]
    assert said == [each for each in MOMENTS if each != moment], "nothing of it is written"
    assert {event.battery for event in failed} == {"diary"}  # type: ignore[attr-defined]
    assert failed[0].error == f"ValueError: {moment} on purpose"  # type: ignore[attr-defined]


async def test_it_is_found_by_its_type(sqlite_world: World) -> None:
    class Looking(Writer):
        async def look(self) -> str | None:
            return parts_of(self)[DiaryPart].battery

    host = await sqlite_world.host(Looking)
    assert await host.get(Looking, "l").look() == "diary"
