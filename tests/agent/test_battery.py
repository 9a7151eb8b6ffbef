"""A `Battery`: what a mixin declares, in which order, and what is refused when the class is made."""

from __future__ import annotations

from typing import Any

import pytest

from battery import NEWER_NOTES, NOTES, TASKS
from outlast import Agent
from outlast.agent import gateway
from outlast.agent.agent import parts_of
from outlast.agent.battery import Battery, batteries_of
from outlast.agent.part import Part
from outlast.host.admin import socket as admin
from outlast.host.admin.socket import AdminRefused
from outlast.store.operations import Query, Statement
from outlast.store.url import identity_of
from support import hosting


def made(name: str, *needs: str, **more: Any) -> type[Agent]:
    """A mixin with a battery of this name, whose part has a class of its own."""
    part = type(f"{name.title()}Part", (Part,), {})
    battery = Battery(name=name, part=part, needs=needs, **more)
    return type(f"Has{name.title()}", (Agent,), {"battery": battery})


def names(agent_class: type[Agent]) -> list[str]:
    return [battery.name for battery in gateway.batteries(agent_class)]


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Notes", "1st", "my-notes", "notes ", "nötes"])
def test_a_name_must_be_fit_for_tables_and_routes(name: str) -> None:
    with pytest.raises(ValueError, match="must be lower-case letters, digits and _, got"):
        Battery(name=name, part=Part)


@pytest.mark.parametrize("name", ["chat", "rpc", "sub", "foundation"])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"must not be {name!r}, which"):
        Battery(name=name, part=Part)


def test_a_schema_must_have_the_name_of_its_battery() -> None:
    with pytest.raises(
        ValueError, match="schema of the battery 'tasks' must have its name, got 'n"
    ):
        Battery(name="tasks", part=Part, schema=NOTES)


@pytest.mark.parametrize("field", ["views", "commands"])
@pytest.mark.parametrize("path", ["outlast.notes", "outlast/notes:X", ":X", "a:b:c", "notes:"])
def test_what_is_loaded_later_must_be_named_as_it_is_loaded(field: str, path: str) -> None:
    with pytest.raises(ValueError, match=rf"{field} of the battery 'n' must be .*got '{path}'"):
        Battery(name="n", part=Part, **{field: path})


def test_a_need_that_the_class_does_not_have_is_named() -> None:
    notes = made("notes", "files")
    with pytest.raises(TypeError, match="battery 'notes' of Alone needs 'files': add its base"):
        type("Alone", (notes,), {})


def test_two_that_need_each_other_are_refused() -> None:
    one, other = made("one", "other"), made("other", "one")
    with pytest.raises(TypeError, match="need each other"):
        type("Circle", (one, other), {})


def test_two_of_one_name_are_refused() -> None:
    one, other = made("notes"), made("notes")
    with pytest.raises(TypeError, match="Twice has two batteries named 'notes'; rename one"):
        type("Twice", (one, other), {})


def test_a_battery_must_be_one() -> None:
    with pytest.raises(TypeError, match=r"Wrong\.battery must be a Battery, got 'notes'"):
        type("Wrong", (Agent,), {"battery": "notes"})


# --- what a class has ----------------------------------------------------------------------------


def test_what_is_needed_comes_first_whatever_the_order_of_the_bases() -> None:
    a, b, c = made("a", "c"), made("b"), made("c", "b")
    for bases in ((a, b, c), (c, b, a), (b, c, a)):
        found = names(type("All", bases, {}))
        assert found.index("b") < found.index("c") < found.index("a")
    assert names(Agent) == []


def test_a_class_has_those_of_all_its_bases_each_once() -> None:
    a, b = made("a"), made("b")
    below = type("Below", (a,), {})
    assert names(type("Diamond", (below, a, b), {})) == ["b", "a"]
    assert [each.name for each in batteries_of((a, below, a, b), "X")] == ["a", "b"]
    assert names(below) == ["a"], "its subclass has not changed it"


def test_the_order_of_all_parts_can_be_asked_of_the_class() -> None:
    order = gateway.part_order(type("Both", (made("b", "a"), made("a")), {}))
    assert order[:2] == ["SubAgents", "Facts"]
    assert order[-2:] == ["a", "b"]


# --- what it adds --------------------------------------------------------------------------------

WORK = Query.same("SELECT agent FROM tasks WHERE agent > ? ORDER BY agent LIMIT ?", bulk=True)
COUNT = Query.same("SELECT count(*) FROM tasks WHERE agent = ?")
ADD = Statement.same(
    "tasks add", "agent text, n bigint", "INSERT INTO tasks (agent, n) VALUES (:agent, :n)", key=1
)


class TasksPart(Part):
    started: list[str] = []  # addresses

    async def load(self) -> None:
        ((self.count,),) = await self.activation.fetch(COUNT, self.address)

    async def start(self) -> None:
        if self.count:
            self.started.append(self.address)


class HasTasks(Agent):
    battery = Battery(
        name="tasks",
        part=TasksPart,
        schema=TASKS,
        first_reads=(COUNT,),
        unfinished_work=(WORK,),
        operators=("add_task",),
    )

    async def add_task(self, n: int = 1) -> dict[str, Any]:
        parts = parts_of(self)
        await parts.commits.write([(ADD, (parts[TasksPart].address, n))])
        return {"added": n}

    async def secret(self) -> None: ...


class Worker(HasTasks): ...


async def test_agents_with_unfinished_work_of_a_battery_are_woken_at_boot(store_url: str) -> None:
    async with hosting(Worker, url=store_url) as host:
        await host.get(Worker, "busy").add_task()
        await host.get(Worker, "idle").secret()
    TasksPart.started.clear()
    async with hosting(Worker, url=store_url, life="2") as host:
        await host.until_settled()
        assert TasksPart.started == ["Worker/busy"]


async def test_operators_may_call_what_the_battery_names(store_url: str) -> None:
    async def ask(call: str, **arguments: Any) -> Any:
        request = {"call": call, "agent": "Worker/w", "arguments": arguments}
        return await admin.ask(admin.sockets_of(identity_of(store_url)), request)

    async with hosting(Worker, url=store_url, admin=True):
        assert await ask("add_task", n=3) == {"added": 3}
        with pytest.raises(AdminRefused, match="operators cannot call 'secret' of Worker"):
            await ask("secret")


def test_two_versions_of_its_tables_cannot_be_in_one_class() -> None:
    old, new = made("notes", schema=NOTES), made("notes", schema=NEWER_NOTES)
    with pytest.raises(TypeError, match="two batteries named 'notes'"):
        type("Mixed", (old, new), {})
