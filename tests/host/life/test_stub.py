"""`host.get()`: a stub that stands for an agent, in memory or not. Every misuse says what to do."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections import namedtuple
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from outlast import Agent, Host, HostStopped, Think, UnknownAgent
from outlast.core.errors import OutlastError
from outlast.testing import CountingIds
from support import World, raw

CACHE = Path(__file__).parents[3] / ".mypy_cache" / "test_stub"
NotAnAgent = namedtuple("NotAnAgent", "field")


class Counter(Agent):
    limit = 10

    def __init__(self) -> None:
        self.calls = 0

    async def add(self, n: int = 1, *, twice: bool = False) -> int:
        """Add to the total."""
        self.calls += 1
        total = (await self.storage.get("total") or 0) + (2 * n if twice else n)
        await self.storage.put("total", total)
        return total

    async def fail(self) -> None:
        raise ZeroDivisionError("of the user's own")

    async def _hidden(self) -> None: ...

    def sync(self) -> int:
        return 1

    @property
    def total(self) -> int:
        return self.calls


class Other(Agent): ...


class Assistant(Think):
    model = "test"


async def test_getting_a_stub_does_no_io_and_activates_nothing(sqlite_world: World) -> None:
    host = await sqlite_world.host(Counter)
    await host.until_settled()
    read: list[Any] = []
    fetch = host.store.fetch
    host.store.fetch = lambda *query: (read.append(query), fetch(*query))[1]  # type: ignore
    stub = host.get(Counter, "alice")
    method = stub.add
    assert (read, host.statistics().active, host.store.statistics().commits) == ([], 0, 0)
    assert await method(2) == 2
    assert read
    assert host.statistics().active == 1
    await sqlite_world.stop()
    with closing(raw(sqlite_world.url)) as db:
        assert db.execute("SELECT root FROM agents").fetchall() == [("Counter/alice",)]


async def test_a_call_passes_arguments_results_and_exceptions_through(sqlite_world: World) -> None:
    host = await sqlite_world.host(Counter)
    alice = host.get(Counter, "alice")
    assert await alice.add() == 1
    assert await alice.add(2, twice=True) == 5
    with pytest.raises(ZeroDivisionError, match="of the user's own"):
        await alice.fail()
    with pytest.raises(TypeError, match="unexpected keyword"):
        await alice.add(thrice=True)  # type: ignore[call-arg]
    assert await alice.add() == 6


async def test_a_private_method_is_refused(sqlite_world: World) -> None:
    host = await sqlite_world.host(Counter)
    with pytest.raises(AttributeError, match="_hidden is private"):
        await host.get(Counter, "alice")._hidden()
    assert host.statistics().active == 0


async def test_a_sync_method_is_refused_with_the_advice_to_make_it_async(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Counter)
    with pytest.raises(TypeError, match=r"Counter\.sync is not async.*Make it async"):
        host.get(Counter, "alice").sync()


@pytest.mark.parametrize("name", ["limit", "calls", "total", "no_such_thing"])
async def test_what_is_not_a_method_is_refused_with_the_advice_to_add_one(
    sqlite_world: World, name: str
) -> None:
    host = await sqlite_world.host(Counter)
    stub = host.get(Counter, "alice")
    with pytest.raises(
        AttributeError, match=rf"Counter\.{name} is not a method.*Add an async method"
    ):
        getattr(stub, name)
    assert not hasattr(stub, name)


def test_a_stub_knows_its_address_without_asking() -> None:
    alice = Host(agents=[Counter]).get(Counter, "alice")
    assert (alice.name, alice.self_path, alice.parent_path) == (
        "alice",
        (("Counter", "alice"),),
        (),
    )


def test_a_stub_lists_what_can_be_reached_through_it() -> None:
    alice = Host(agents=[Counter]).get(Counter, "alice")
    listed = dir(alice)
    assert {"add", "fail", "name", "set_state", "schedule"} <= set(listed)
    assert [name for name in listed if not hasattr(alice, name)] == []
    assert not {"sync", "total", "limit", "_hidden", "state", "commit"} & set(listed)


INSTEAD = {"messages": "get_messages", "state": "get_state", "get_config": "get_configuration"}


@pytest.mark.parametrize(
    "name", sorted(name for name in {*dir(Think), "storage"} if not name.startswith("_"))
)
def test_what_think_offers_and_a_stub_does_not_says_what_to_do_instead(name: str) -> None:
    stub = Host(agents=[Assistant]).get(Assistant, "a")
    if name in dir(stub):
        assert hasattr(stub, name)
        return
    advice = "Use it in an async method of Assistant, and call that method"
    if name in INSTEAD:
        advice = f"Use `await stub.{INSTEAD[name]}()`"
    with pytest.raises((AttributeError, TypeError), match=re.escape(advice)):
        getattr(stub, name)


async def test_state_configuration_and_messages_can_be_read_through_a_stub(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Assistant)
    stub = host.get(Assistant, "a")
    await stub.set_state({"n": 1})
    await stub.configure("small")
    await stub.add_messages("Hi")
    assert (await stub.get_state(), await stub.get_configuration()) == ({"n": 1}, "small")
    assert [message.text for message in await stub.get_messages()] == ["Hi"]


async def test_an_attribute_cannot_be_set_through_a_stub(sqlite_world: World) -> None:
    host = await sqlite_world.host(Counter)
    with pytest.raises(AttributeError):
        host.get(Counter, "alice").calls = 3


async def test_a_class_that_was_not_registered_is_refused_and_told_which_are(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Counter)
    with pytest.raises(UnknownAgent, match=r"'Other'.*it runs Counter.*Host\(agents=") as e:
        host.get(Other, "alice")
    assert isinstance(e.value, OutlastError)
    assert isinstance(e.value, LookupError)


async def test_another_class_of_the_same_name_is_refused_and_both_are_named(
    sqlite_world: World,
) -> None:
    namesake = type("Counter", (Agent,), {"__module__": "elsewhere"})
    host = await sqlite_world.host(Counter)
    with pytest.raises(UnknownAgent, match=r"another class named 'Counter'.*elsewhere"):
        host.get(namesake, "alice")


def test_two_classes_of_one_name_cannot_share_a_host() -> None:
    namesake = type("Counter", (Agent,), {})
    with pytest.raises(ValueError, match=r"two agent classes are named 'Counter'; rename one"):
        Host(agents=[Counter, namesake])


def test_the_same_class_may_be_listed_twice() -> None:
    assert Host(agents=[Counter, Counter]).get(Counter, "alice")


@pytest.mark.parametrize("wrong", [int, "Counter", None, NotAnAgent, Counter.add])
def test_a_host_takes_agent_classes_only(wrong: Any) -> None:
    with pytest.raises(TypeError, match="must be subclasses of Agent"):
        Host(agents=[wrong])


@pytest.mark.parametrize("wrong", ["Counter", None, Counter.add])
def test_get_takes_a_class(wrong: Any) -> None:
    with pytest.raises(TypeError, match="agent_class must be a class, got"):
        Host(agents=[Counter]).get(wrong, "alice")


def test_stubs_of_one_agent_on_one_host_are_equal() -> None:
    host, other_host = Host(agents=[Counter, Other]), Host(agents=[Counter])
    alice = host.get(Counter, "alice")
    assert alice == host.get(Counter, "alice")
    assert hash(alice) == hash(host.get(Counter, "alice"))
    different = [
        host.get(Counter, "bob"),
        host.get(Other, "alice"),
        other_host.get(Counter, "alice"),
        "Counter/alice",
    ]
    assert all(alice != one for one in different)
    assert len({alice, host.get(Counter, "alice"), *different}) == 5


def test_a_stub_shows_its_address() -> None:
    alice = Host(agents=[Counter]).get(Counter, "alice/ö")
    assert repr(alice) == "<stub of Counter/alice%2F%C3%B6>"
    assert (alice.add.__name__, alice.add.__qualname__) == ("add", "Counter.add")


def test_a_stub_can_be_copied() -> None:
    alice = Host(agents=[Counter]).get(Counter, "alice")
    assert copy.copy(alice) == alice


async def test_a_host_that_was_not_started_says_so(sqlite_url: str) -> None:
    host = Host(agents=[Counter], store=sqlite_url, ids=CountingIds())
    alice = host.get(Counter, "alice")
    with pytest.raises(HostStopped, match=r"Counter/alice.*host is new.*async with Host"):
        await alice.add()
    with pytest.raises(HostStopped, match=r"host is new.*async with Host"):
        await host.until_settled()
    assert host.statistics().active == 0
    async with host:
        assert await alice.add() == 1


def test_a_type_checker_sees_the_methods_of_the_agent_behind_a_stub(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(
        dedent("""
        from outlast import Agent, Host

        class Counter(Agent):
            async def add(self, n: int) -> int:
                return n

        async def use(host: Host) -> None:
            total: int = await host.get(Counter, "alice").add(1)
            text: str = await host.get(Counter, "alice").add(1)
            await host.get(Counter, "alice").subtract(total)
            name: str = host.get(Counter, "alice").name
            state: dict[str, int] = await host.get(Counter, "alice").get_state()
        """)
    )
    # What chat agents import is not part of the question, and takes a minute to read.
    (tmp_path / "mypy.ini").write_text("[mypy-pydantic_ai.*]\nfollow_imports = skip\n[mypy]\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(CACHE)]
    result = subprocess.run(
        [*command, "use.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    complaints = [line for line in result.stdout.splitlines() if line.startswith("use.py")]
    assert len(complaints) == 2, result.stdout
    assert 'expression has type "int", variable has type "str"' in complaints[0]
    assert '"Counter" has no attribute "subtract"' in complaints[1]
