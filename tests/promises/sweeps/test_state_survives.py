"""State and configuration, set alone and together with other writes: killed at every commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlast import Agent, Host
from outlast.testing import Outcome
from sweeps import crash_sweep

STEPS = 4
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Board:
    moves: tuple[datetime, ...] = ()


@dataclass
class Settings:
    limits: dict[str, int] = field(default_factory=dict)


class Game(Agent):
    state_type = Board
    initial_state = Board()
    config_type = Settings
    told: list[int] = []

    async def play(self) -> None:
        while (n := len(self.state.moves)) < STEPS:
            async with self.commit():  # the state and what goes with it, together
                await self.set_state(Board((*self.state.moves, BEGINNING + timedelta(days=n))))
                await self.storage.put(f"move {n}", await self.storage.get(f"move {n}", 0) + 1)
            await self.configure(Settings({"left": STEPS - n - 1}))

    async def on_state_changed(self, state: Board, source: Any) -> None:
        Game.told.append(len(state.moves))

    async def everything(self) -> Any:
        return self.state, self.get_config(), await self.storage.list()


async def drive(host: Host) -> None:
    game = host.get(Game, "g")
    before = len((await game.everything())[0].moves)
    await game.play()
    state, config, _ = await game.everything()
    assert len(state.moves) == STEPS >= before
    if before < STEPS:
        assert config == Settings({"left": 0})


async def check(outcome: Outcome) -> None:
    state, config, stored = await outcome.host.get(Game, "g").everything()
    assert state == Board(tuple(BEGINNING + timedelta(days=n) for n in range(STEPS)))
    assert stored == {f"move {n}": 1 for n in range(STEPS)}
    lost = range(len(outcome.deaths) + 1)
    assert config in [Settings({"left": n}) for n in lost], "the last one, if it came to it"
    assert {*Game.told} <= {*range(1, STEPS + 1)}
    assert len(Game.told) <= STEPS, "nobody is told of a change that was not made"


@pytest.mark.parametrize("mode", ["commits", "groups", "twice"])
async def test_on_sqlite(mode: Any) -> None:
    report = await crash_sweep(
        agents=[Game],
        drive=drive,
        check=check,
        reset=Game.told.clear,
        outside=[Game.told],
        mode=mode,
    )
    assert report.commits == 2 * STEPS
    assert report.deaths >= 2 * report.commits


async def test_on_postgresql(postgres: str) -> None:
    report = await crash_sweep(
        agents=[Game],
        drive=drive,
        check=check,
        reset=Game.told.clear,
        outside=[Game.told],
        store=postgres,
        sample=8,
    )
    assert report.deaths == 8
