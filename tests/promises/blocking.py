"""A busy host, watched for calls that block its event loop. Run by test_blocking.py as a program.

An audit hook sees every file that is opened, every sleep, connection, process and import, whoever asks for
it. It cannot be removed again, hence the process of its own. What happens on the loop's thread counts, except
inside the store's commit and while a store is opened or closed. Large values that pass through the store's
connection on the loop count as well: those are to be read in the reader's thread. Prints one line a finding.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from outlast import Agent, FiberContext, Host
from outlast.agent.agent import parts_of
from outlast.agent.state.storage import INLINE_BYTES
from outlast.core import json
from outlast.host.wakeups.alarms import alarm
from outlast.store.sqlite import engine
from outlast.store.url import open_store
from outlast.testing import CountingIds, VirtualClock, VirtualLoop

BLOCKING = {
    "import",
    "open",
    "os.listdir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.scandir",
    "os.system",
    "socket.connect",
    "socket.getaddrinfo",
    "sqlite3.connect",
    "subprocess.Popen",
    "time.sleep",
}
MEGABYTES = 5 * 1024 * 1024


class Watch:
    """Finds out who blocks the loop."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self._thread = threading.get_ident()
        self._excused = 0

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in BLOCKING:
            self.note(f"{event} {arguments[:1]}")

    def note(self, what: str) -> None:
        if threading.get_ident() == self._thread and not self._excused:
            self.findings.append(f"{what} in {_callers(sys._getframe(1))}")

    def forbid(self, owner: Any, name: str, event: str) -> None:
        """Count calls of a function that is not audited (`time.sleep`, before Python 3.13)."""
        function: Callable[..., Any] = getattr(owner, name)

        def forbidden(*arguments: Any) -> Any:
            self.hook(event, arguments)
            return function(*arguments)

        setattr(owner, name, forbidden)

    def excuse(self, owner: Any, name: str) -> None:
        """What happens inside this function is meant to happen on the loop."""
        function: Callable[..., Any] = getattr(owner, name)

        def excused(*arguments: Any) -> Any:
            self._excused += 1
            try:
                return function(*arguments)
            finally:
                self._excused -= 1

        setattr(owner, name, excused)

    def text(self, value: bytes) -> str:
        """Every text that is read through the connection of the loop passes here."""
        if len(value) > INLINE_BYTES:
            self.note(f"a read of {len(value)} bytes")
        return value.decode()


def _callers(frame: Any) -> str:
    """The innermost functions, found without opening any file."""
    names: list[str] = []
    while frame is not None and len(names) < 8:
        if not frame.f_code.co_qualname.startswith("Watch."):
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return " < ".join(names)


class Busy(Agent):
    recovered: ClassVar[int] = 0

    async def small(self) -> None:
        for n in range(20):
            await self.storage.put(f"key {n}", {"n": n})
            assert await self.storage.get(f"key {n}") == {"n": n}
        await self.storage.delete("key 0")
        assert len(await self.storage.list("key ")) == 19
        async with self.commit():
            await self.storage.put("a", 1)
            await self.storage.put("b", 2)

    async def large(self) -> None:
        await self.storage.put("large", "x" * MEGABYTES)
        assert len(await self.storage.get("large")) == MEGABYTES
        assert list(await self.storage.list("lar")) == ["large"]

    async def fibers(self) -> None:
        first = self.run_fiber("work", self.work, 3)
        second = await self.start_fiber("work", self.work, 3, idempotency_key="k", wait=True)
        third = await self.start_fiber("work", self.work, 1_000)
        assert await self.cancel_fiber(third.id)
        assert (await first, second.status) == ("done", "completed")
        assert len(await self.list_fibers()) == 2

    async def work(self, fiber: FiberContext, steps: int) -> str:
        for step in range(steps):
            await fiber.stash(step)
            await asyncio.sleep(0.1)
        return "done"

    async def leave_behind(self) -> None:
        await self.run_fiber("left", self.work, 1_000_000)._fiber.accepted

    async def on_fiber_recovered(self, fiber: Any) -> None:
        Busy.recovered += 1

    async def set_alarm(self) -> None:
        at = parts_of(self).activation.clock.now() + 10_000
        await parts_of(self).commits.commit(
            [alarm(parts_of(self).activation.address.text, "fibers", at)]
        )
        parts_of(self).activation.alarm_was_set(at)

    async def block(self) -> None:
        """Everything that an agent must not do."""
        time.sleep(0.001)  # noqa: ASYNC251
        with open(__file__):
            pass
        with socket.socket() as client:
            client.settimeout(0.1)
            client.connect_ex(("127.0.0.1", 9))
        subprocess.run(["true"], check=True)  # noqa: ASYNC221
        sqlite3.connect(":memory:").close()
        import colorsys  # noqa: F401

    async def read_on_the_loop(self) -> None:
        db = parts_of(self).activation.store._db  # type: ignore[attr-defined]
        db.execute("SELECT value FROM storage WHERE key = 'large'").fetchall()


async def live(url: str, life: str, *acts: Any) -> None:
    """One life of a host. It ends without waiting for fibers."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    store = await open_store(url)
    store._db.text_factory = watch.text  # type: ignore[attr-defined]
    loop.watch(store)
    options = {"clock": VirtualClock(loop), "ids": CountingIds(life), "shutdown_timeout": 0}
    async with Host([Busy], store, **options) as host:  # type: ignore[arg-type]
        for act in acts:
            await act(host)


async def work(host: Host) -> None:
    agents = [host.get(Busy, f"a{n}") for n in range(10)]
    await asyncio.gather(*(agent.small() for agent in agents))
    await asyncio.gather(agents[0].large(), agents[1].large())
    await asyncio.gather(*(agent.fibers() for agent in agents))
    await asyncio.gather(*(agent.set_alarm() for agent in agents))
    await asyncio.sleep(100)
    assert host.statistics().active == 0  # evicted
    await asyncio.gather(*(agent.leave_behind() for agent in agents))


async def recover(host: Host) -> None:
    await host.until_settled()
    assert Busy.recovered == 10


async def misbehave(host: Host) -> None:
    agent = host.get(Busy, "a0")
    await agent.large()
    await agent.block()
    await agent.read_on_the_loop()


async def main(url: str, blocks: bool) -> None:
    if blocks:
        await live(url, "1", misbehave)
    else:
        await live(url, "1", work)
        await live(url, "2", recover)


if __name__ == "__main__":
    watch = Watch()
    watch.forbid(time, "sleep", "time.sleep")
    watch.excuse(engine.SqliteStore, "_flush")
    watch.excuse(engine.SqliteStore, "_release")
    watch.excuse(engine, "open_sqlite")
    watch.excuse(json, "prepare")  # when a host starts
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop()
        sys.addaudithook(watch.hook)
        runner.run(main(sys.argv[1], blocks="blocks" in sys.argv))
        found = list(watch.findings)
    print("\n".join(found) or "nothing blocks")
