"""The parts that an agent is made of: their order, who is asked, and who owns a name or an alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outlast import Agent
from outlast.agent.agent import parts_of
from outlast.agent.battery import Battery
from outlast.agent.events import BatteryFailed
from outlast.agent.fibers.fibers import Fibers
from outlast.agent.part import Part, Parts
from outlast.agent.state.facts import Facts
from support import hosting, listen


class Greets(Part):
    def greeting(self) -> list[str]:
        return ["hello"]


class Silent(Part):
    alarms = ("silent",)


class HasGreets(Agent):
    battery = Battery(name="greets", part=Greets)


class HasSilent(Agent):
    battery = Battery(name="silent_one", part=Silent)


class Both(HasGreets, HasSilent):
    async def do(self, function: Callable[[Parts], Any]) -> Any:
        return function(parts_of(self))


async def with_parts(url: str, function: Callable[[Parts], Any]) -> Any:
    async with hosting(Both, url=url) as host:
        return await host.get(Both, "b").do(function)


async def test_parts_of_batteries_come_after_those_of_the_agent(sqlite_url: str) -> None:
    def look(parts: Parts) -> None:
        order = [type(part) for part in parts]
        assert order.index(Facts) < order.index(Fibers) < order.index(Silent)
        assert {order[-1], order[-2]} == {Silent, Greets}
        assert isinstance(parts[Silent], Silent)
        assert parts.get(Greets) is parts.of_battery("greets")
        assert (parts.of_battery("fibers"), parts[Fibers].battery) == (None, None)

    await with_parts(sqlite_url, look)


async def test_a_part_that_an_agent_does_not_use_is_not_there(sqlite_url: str) -> None:
    def only_of_wanted(parts: Parts) -> Part | None:
        return Greets(parts) if parts.agent.name == "wanted" else None

    class Picky(Agent):
        battery = Battery(name="greets", part=only_of_wanted)

        async def has(self) -> bool:
            return parts_of(self).get(Greets) is not None

    async with hosting(Picky, url=sqlite_url) as host:
        assert await host.get(Picky, "wanted").has()
        assert not await host.get(Picky, "other").has()


async def test_only_parts_that_override_a_moment_are_asked(sqlite_url: str) -> None:
    def look(parts: Parts) -> None:
        assert [method.__self__ for method in parts.overriding("greeting")] == [parts[Greets]]
        assert parts.overriding("wake_up_late") == []

    await with_parts(sqlite_url, look)


async def test_two_parts_of_one_class_are_refused(sqlite_url: str) -> None:
    def look(parts: Parts) -> None:
        with pytest.raises(TypeError, match="two parts of the class Greets; derive a class"):
            parts.add(Greets(parts), "another")

    await with_parts(sqlite_url, look)


async def test_stored_names_lead_to_their_owner(sqlite_url: str) -> None:
    def look(parts: Parts) -> None:
        assert parts.owner_of("battery:greets:wave:twice") == (parts[Greets], "wave:twice")
        for own in ("wave", "greets:wave", "battery", "battery:greets", ""):
            assert parts.owner_of(own) is None
        with pytest.raises(LookupError, match="battery 'gone', which Both does not use"):
            parts.owner_of("battery:gone:wave")

    await with_parts(sqlite_url, look)


async def test_alarms_lead_to_their_owner(sqlite_url: str) -> None:
    def look(parts: Parts) -> None:
        assert parts.alarm_owner("greets") is parts[Greets]
        assert parts.alarm_owner("greets:soon") is parts[Greets]
        assert parts.alarm_owner("silent") is parts[Silent]
        assert parts.alarm_owner("silent_one:x") is parts[Silent]
        with pytest.raises(LookupError, match="no part of Both has an alarm 'gone:soon'"):
            parts.alarm_owner("gone:soon")

    await with_parts(sqlite_url, look)


class Adds(Part):
    """Adds to a commit, and then fails if it was told to."""

    fails = False

    def happened(self, commit: Any, detail: str) -> str:
        commit.then(lambda: self.parts.agent.said.append(f"{self.battery} {detail}"))
        if self.fails:
            raise ValueError("on purpose")
        return f"{self.battery} returns"


class AddsMore(Adds): ...


class HasAdds(Agent):
    battery = Battery(name="adds", part=Adds)

    def __init__(self) -> None:
        self.said: list[str] = []


class HasMore(Agent):
    battery = Battery(name="more", part=AddsMore)


class Joining(HasAdds, HasMore):
    async def join(self, *, fails: bool) -> tuple[list[Any], list[str]]:
        parts = parts_of(self)
        parts[Adds].fails = fails
        commit = parts.commits.new()
        results = parts.join("happened", commit, "it")
        commit._durable()
        return results, self.said


async def test_all_join_a_commit_in_order_and_what_each_returns_is_returned(
    sqlite_url: str,
) -> None:
    async with hosting(Joining, url=sqlite_url) as host:
        results, said = await host.get(Joining, "j").join(fails=False)
        assert results == ["more returns", "adds returns"]
        assert said == ["more it", "adds it"]


async def test_a_battery_that_raises_adds_nothing_and_is_reported(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with hosting(Joining, url=sqlite_url) as host:
        failed = listen(host, BatteryFailed)
        results, said = await host.get(Joining, "j").join(fails=True)
        assert results == ["more returns", None]
        assert said == ["more it"]
        assert [(event.battery, event.error) for event in failed] == [  # type: ignore[attr-defined]
            ("adds", "ValueError: on purpose")
        ]
        assert "Joining/j: happened of adds failed" in caplog.text


async def test_a_part_of_the_agent_itself_that_raises_is_an_error(sqlite_url: str) -> None:
    class Own(Agent):
        _part_types = (*Agent._part_types, Adds)
        said: list[str] = []
        join = Joining.join

    async with hosting(Own, url=sqlite_url) as host:
        with pytest.raises(ValueError, match="on purpose"):
            await host.get(Own, "o").join(fails=True)
