"""How to crash-test an agent of your own: pytest examples/test_my_agent.py

`Billing` charges customers through a bank. The bank is a folder here, so that it outlasts the process as a
real one does, and so that the tests can count what it was asked. See docs/testing.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent, FiberContext, FiberRecoveryContext, Host
from outlast.store.url import open_store
from outlast.testing import Outcome, VirtualClock, VirtualLoop, Worker

CUSTOMERS = ["ann", "bob", "cleo"]


# --- the agent ------------------------------------------------------------------------------------


class Billing(Agent):
    async def bill(self, month: str, bank: str) -> None:
        plan = {"month": month, "bank": bank, "todo": CUSTOMERS}
        await self.start_fiber("bill", self.work, plan, id=f"bill {month}")

    async def work(self, fiber: FiberContext, plan: dict[str, Any]) -> None:
        while plan["todo"]:
            customer = plan["todo"][0]
            try:
                receipt = charge(Path(plan["bank"]), key=f"{fiber.id}: {customer}")
            except ConnectionError:
                await asyncio.sleep(60)
                continue
            async with self.commit():  # the receipt and the position, together or not at all
                await self.storage.put(f"receipt {plan['month']} {customer}", receipt)
                plan["todo"] = plan["todo"][1:]
                await fiber.stash(plan)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        if fiber.name != "bill":
            raise LookupError(f"no code for a fiber called {fiber.name!r}")
        fiber.resume(self.work)  # under the same id, so the keys for the bank stay the same

    async def receipts(self) -> dict[str, str]:
        return await self.storage.list("receipt ")


# --- the world outside ----------------------------------------------------------------------------


def charge(bank: Path, key: str) -> str:
    """Ask the bank for a charge. A real one ignores a key that it has seen; this one notes it again."""
    if (bank / "closed").exists():
        raise ConnectionError("the bank does not answer")
    with (bank / "requests").open("a") as requests:
        requests.write(f"{key}\n")
    return f"receipt for {key}"


def requests(bank: Path) -> list[str]:
    file = bank / "requests"
    return file.read_text().splitlines() if file.exists() else []


KEYS = [f"bill May: {customer}" for customer in CUSTOMERS]
RECEIPTS = {f"receipt May {name}": f"receipt for bill May: {name}" for name in CUSTOMERS}


# --- the tests ------------------------------------------------------------------------------------


# --8<-- [start:sweep]
@pytest.mark.parametrize("mode", ["commits", "groups", "twice"])
def test_everyone_is_charged_wherever_it_dies(
    crash_sweep: Callable[..., Any], mode: str, tmp_path: Path
) -> None:
    async def drive(host: Host) -> None:  # again after each death, on the same store
        await host.get(Billing, "b").bill("May", str(tmp_path))
        await host.until_settled()

    async def check(outcome: Outcome) -> None:
        asked = requests(tmp_path)
        assert sorted(set(asked)) == KEYS, "nobody is left out, nobody is charged under two keys"
        assert len(asked) <= len(KEYS) + len(outcome.deaths), "a death repeats one request at most"
        assert await outcome.host.get(Billing, "b").receipts() == RECEIPTS

    def reset() -> None:  # what lives outside the store
        (tmp_path / "requests").unlink(missing_ok=True)

    report = asyncio.run(
        crash_sweep(agents=[Billing], drive=drive, check=check, reset=reset, mode=mode)
    )
    assert report.deaths >= 2 * report.commits


# --8<-- [end:sweep]


def test_a_day_without_the_bank_is_waited_out(tmp_path: Path) -> None:
    async def day() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        (tmp_path / "closed").touch()
        loop.call_later(24 * 3600, (tmp_path / "closed").unlink)
        store = await open_store(f"sqlite:///{tmp_path}/store.db")
        loop.watch(store)  # time stands still while it writes
        async with Host([Billing], store, clock=VirtualClock(loop)) as host:
            await host.get(Billing, "b").bill("May", str(tmp_path))
            await host.until_settled()
            assert await host.get(Billing, "b").receipts() == RECEIPTS
        assert loop.time() >= 24 * 3600

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:  # takes milliseconds
        runner.run(day())


# --8<-- [start:kill]
async def drive_worker(host: Host, bank: str) -> None:
    await host.get(Billing, "b").bill("May", bank)


def test_kill_9_for_real(killable_worker: Callable[..., Worker], tmp_path: Path) -> None:
    worker = killable_worker(agents=[Billing], drive=drive_worker, arguments=[str(tmp_path)])
    for point in ("before commit 1", "after commit 1", "before commit 3", "after commit 2"):
        assert worker.run(kill_at=point).killed, point
    assert not worker.run().killed
    assert sorted(set(requests(tmp_path))) == KEYS
    assert len(requests(tmp_path)) <= len(KEYS) + 4


# --8<-- [end:kill]
