"""State and configuration: one value each, validated, durable, typed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest

from outlast import Agent, Host
from support import World, listen, raw


class Plain(Agent):
    initial_state: Any = {"n": 0, "items": []}
    told: list[Any] = []

    async def get(self) -> Any:
        return self.state

    async def change(self, state: Any) -> Any:
        await self.set_state(state)
        return self.state

    async def do(self, function: Any) -> Any:
        return await function(self)

    def validate_state_change(self, state: Any, source: Any) -> None:
        if state == "forbidden":
            raise ValueError(f"refused from {source}")

    async def on_state_changed(self, state: Any, source: Any) -> None:
        self.told.append((state, source))


@pytest.fixture(autouse=True)
def _forget() -> None:
    Plain.told = []


async def test_state_is_initial_until_set_and_durable_when_set(world: World) -> None:
    host = await world.host(Plain)
    agent = host.get(Plain, "a")
    events = listen(host, "state")
    assert await agent.get() == {"n": 0, "items": []}
    assert host.store.statistics().batches == 0, "reading writes nothing"
    assert await agent.change({"n": 1}) == {"n": 1}
    await host.until_settled()
    assert Plain.told == [({"n": 1}, "server")]
    assert [event.name for event in events] == ["state:update"]
    host = await world.next_life()
    assert await host.get(Plain, "a").get() == {"n": 1}
    assert await host.get(Plain, "b").get() == {"n": 0, "items": []}


async def test_a_refused_or_unstorable_state_changes_nothing(world: World) -> None:
    host = await world.host(Plain)
    agent = host.get(Plain, "a")
    await agent.change("good")
    with pytest.raises(ValueError, match="refused from server"):
        await agent.change("forbidden")
    with pytest.raises(TypeError, match=r"state\['x'\] is a set"):
        await agent.change({"x": {1}})
    assert await agent.get() == "good"
    await host.until_settled()
    assert Plain.told == [("good", "server")]


async def test_a_validate_state_change_that_is_async_is_refused_and_nothing_is_stored(
    world: World,
) -> None:
    class Awaiting(Plain):
        async def validate_state_change(self, state: Any, source: Any) -> None:  # type: ignore[override]
            raise ValueError("nobody waits for this")

    class Wrapped(Plain):
        def validate_state_change(self, state: Any, source: Any) -> Any:
            return asyncio.get_running_loop().create_future()

    host = await world.host(Awaiting, Wrapped)
    for kind in (Awaiting, Wrapped):
        agent = host.get(kind, "a")
        with pytest.raises(
            TypeError, match=f"{kind.__name__}.validate_state_change must not be async"
        ):
            await agent.change("new")
        assert await agent.get() == {"n": 0, "items": []}
    await host.until_settled()
    assert Plain.told == []


async def test_what_state_returns_is_a_copy(sqlite_world: World) -> None:
    host = await sqlite_world.host(Plain)

    async def meddle(agent: Plain) -> None:
        agent.state["items"].append(1)
        assert agent.state == {"n": 0, "items": []}
        given = {"items": [1]}
        await agent.set_state(given)
        given["items"].append(2)
        agent.state["items"].append(3)
        assert agent.state == {"items": [1]}

    await host.get(Plain, "a").do(meddle)
    assert Plain.initial_state == {"n": 0, "items": []}


async def test_state_joins_a_commit_block(world: World) -> None:
    host = await world.host(Plain)

    async def block(agent: Plain) -> None:
        with pytest.raises(ZeroDivisionError):
            async with agent.commit():
                await agent.set_state("inside")
                assert agent.state == "inside"
                1 / 0  # noqa: B018
        assert agent.state == {"n": 0, "items": []}
        async with agent.commit():
            await agent.set_state("kept")
            await agent.configure({"with": "it"})
            await agent.storage.put("and", "this")
        assert (agent.state, agent.get_config()) == ("kept", {"with": "it"})

    await host.get(Plain, "a").do(block)
    await host.until_settled()
    assert Plain.told == [("kept", "server")]


async def test_a_failing_on_state_changed_is_logged_and_harms_nobody(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Plain):
        async def on_state_changed(self, state: Any, source: Any) -> None:
            raise ValueError("listener")

    host = await sqlite_world.host(Failing)
    assert await host.get(Failing, "a").change(1) == 1
    await host.until_settled()
    await sqlite_world.stop()
    assert "on_state_changed failed" in caplog.text


@dataclass
class Inner:
    x: int = 0


@dataclass
class Settings:
    name: str
    inner: Inner = field(default_factory=Inner)
    seen: dict[str, Inner | None] = field(default_factory=dict)


class Model(pydantic.BaseModel):
    value: int = pydantic.Field(alias="theValue")
    at: tuple[datetime, ...] = ()


class Typed(Agent):
    config_type = Settings
    state_type = Model

    async def do(self, function: Any) -> Any:
        return await function(self)


async def test_typed_state_and_configuration_come_back_as_their_types(world: World) -> None:
    settings = Settings("n", Inner(5), {"a": Inner(6), "b": None})
    model = Model(theValue=7, at=(datetime(2026, 1, 1, tzinfo=UTC),))

    async def write(agent: Typed) -> None:
        assert agent.get_config() is None
        await agent.configure(settings)
        await agent.set_state(model)
        with pytest.raises(TypeError, match="configuration must be a Settings, got dict"):
            await agent.configure({"name": "n"})
        with pytest.raises(TypeError, match="state must be a Model"):
            await agent.set_state({"value": 1})
        with pytest.raises(ValueError, match="name: Input should be a valid string"):
            await agent.configure(Settings(5))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="value: Input should be a valid integer"):
            await agent.set_state(Model.model_construct(value="seven"))

    async def read(agent: Typed) -> None:
        assert agent.get_config() == settings
        assert agent.state == model

    host = await world.host(Typed)
    await host.get(Typed, "a").do(write)
    await host.get(Typed, "a").do(read)
    host = await world.next_life()
    await host.get(Typed, "a").do(read)


async def test_a_stored_value_that_no_longer_fits_gives_the_default_not_a_dead_agent(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def write(agent: Typed) -> None:
        await agent.configure(Settings("n", Inner(5)))
        await agent.set_state(Model(theValue=7))

    async def read(agent: Typed) -> tuple[Any, Any]:
        return agent.state, agent.get_config()

    async with Host([Typed], sqlite_url) as host:
        await host.get(Typed, "a").do(write)
    db = raw(sqlite_url)
    db.execute("""UPDATE facts SET value = '{"gone": 1}' WHERE name = 'config'""")
    db.execute("UPDATE facts SET value = '{' WHERE name = 'state'")
    db.close()
    async with Host([Typed], sqlite_url) as host:
        assert await host.get(Typed, "a").do(read) == (None, None)
    assert "cannot read the stored config, using the default: name: Field required" in caplog.text
    assert "cannot read the stored state, using the default: Invalid JSON" in caplog.text
