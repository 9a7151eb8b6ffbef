"""script/torture in small, and two turns under a supervisor whose worker is killed again and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from killed_agents import ANSWER, GIVEN_UP

from outlast.client import Client, TurnFailed
from outlast.testing.torture import checks
from outlast.testing.torture.report import Outcome, failure, table
from outlast.testing.torture.run import Options, torture
from outlast.testing.torture.server import database
from outlast.testing.torture.server.process import KILL, TorturedServer

pytestmark = pytest.mark.usefixtures("forks")

LONG = 120.0  # seconds, for a machine that is busy


def shown(outcome: Outcome) -> str:
    return table(outcome) if outcome.is_clean else failure(outcome, "again: see above")


@pytest.mark.invariant("C6", "E14", "H19", "I8", "K5")
async def test_a_few_kills_of_a_chat_server_lose_repeat_and_leave_nothing(
    tmp_path: Path, store_url: str
) -> None:
    is_postgres = store_url.startswith("postgres")
    options = Options(
        tmp_path,
        store_url,
        kills=10 if is_postgres else 7,
        agents=8,
        seed=1,
        settle_within=LONG,
        may_crash_database=is_postgres,
    )
    outcome = await torture(options)
    assert outcome.is_clean, shown(outcome)
    assert sum(outcome.kills.values()) == options.kills
    if is_postgres:
        assert set(outcome.kills) >= set(database.KINDS)
    assert outcome.totals.conversations >= 8
    assert outcome.totals.turns >= 8
    assert outcome.totals.recoveries > 0, "somebody was interrupted, or nothing was tested"
    assert sum(outcome.totals.effects.values()) > 0


async def test_what_is_broken_on_purpose_is_found_in_a_chat_server(
    tmp_path: Path, sqlite_url: str
) -> None:
    """Chunks that are shown before they are stored. The first violation ends the run."""
    options = Options(
        tmp_path, sqlite_url, kills=60, agents=8, seed=2, turns=1, settle_within=5, sabotage="early"
    )
    outcome = await torture(options)
    assert checks.MISSING in {violation.kind for violation in outcome.violations}, shown(outcome)


# --- one turn, killed again and again ------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving(folder: Path, store: str) -> AsyncIterator[TorturedServer]:
    served = TorturedServer(
        folder,
        store,
        target=str(Path(__file__).with_name("killed_agents.py")),
        environment={"OUTLAST_ASKED": str(folder / "asked")},
    )
    served.start()
    try:
        yield served
    finally:
        await served.stop()


async def kill_after(seconds: float, served: TorturedServer, made: Callable[[], int]) -> None:
    """So long after each worker has got somewhere: a machine that is busy gets there later."""
    known = 0
    while True:
        while made() <= known:
            await asyncio.sleep(0.01)
        await asyncio.sleep(seconds)
        known = made()
        await served.strike(KILL)


@contextlib.asynccontextmanager
async def being_killed(
    served: TorturedServer, made: Callable[[], int], after: float = 0.5
) -> AsyncIterator[None]:
    killing = asyncio.create_task(kill_after(after, served, made))
    try:
        yield
    finally:
        killing.cancel()
        await asyncio.wait({killing})


def requests(folder: Path) -> int:
    asked = folder / "asked"
    return len(asked.read_text().splitlines()) if asked.exists() else 0


async def told(client: Client, chunks: list[dict[str, Any]]) -> str:
    """Ask, and hear all of the answer. How it ends for the user."""
    try:
        async for chunk in client.send("Well?"):
            chunks.append(chunk)
    except TurnFailed as error:
        return str(error)
    return "done"


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk.get("delta", "") for chunk in chunks)


@pytest.mark.invariant("G1")
async def test_a_turn_that_gets_on_outlives_a_kill_every_two_seconds(
    tmp_path: Path, sqlite_url: str
) -> None:
    """In small: an answer of three seconds, and no worker that lives for more than half of one."""
    async with (
        serving(tmp_path, sqlite_url) as served,
        Client(served.url, "narrator", "n") as client,
        asyncio.timeout(LONG),
    ):
        chunks: list[dict[str, Any]] = []
        async with being_killed(served, lambda: len(chunks)):
            end = await told(client, chunks)
        assert (end, text_of(chunks)) == ("done", ANSWER)
        deaths = served.log.read_text().count("was killed by SIGKILL")
        assert deaths >= 3, "or it was not interrupted often enough to show anything"
        assert requests(tmp_path) <= deaths + 1, "a death costs one request"
    assert served.died_by_themselves() == []


@pytest.mark.invariant("G2")
async def test_a_turn_that_does_not_get_on_is_sealed_in_bounded_requests(
    tmp_path: Path, sqlite_url: str
) -> None:
    async with (
        serving(tmp_path, sqlite_url) as served,
        Client(served.url, "silent", "s") as client,
        asyncio.timeout(LONG),
    ):
        chunks: list[dict[str, Any]] = []
        async with being_killed(served, lambda: requests(tmp_path), after=1):
            end = await told(client, chunks)
        assert (end, text_of(chunks)) == (GIVEN_UP, "")
        made = requests(tmp_path)
        assert 2 <= made <= 11, "one, and one in each of the ten seconds without progress"
        await served.strike(KILL)
        async with httpx.AsyncClient(timeout=LONG) as http:
            running = await http.get(f"{served.url}/agents/silent/s/chat/stream")
        assert running.status_code == 204, "nobody takes it up again"
        assert requests(tmp_path) == made
    assert served.died_by_themselves() == []
