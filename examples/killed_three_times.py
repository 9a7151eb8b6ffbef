"""A worker runs a fiber of ten steps and is killed with SIGKILL three times. Each step stands exactly once.

python examples/killed_three_times.py            the demo
python examples/killed_three_times.py --worker   what it starts and kills
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from outlast import Agent, FiberContext, FiberRecoveryContext, Host

STEPS = 10
KILLS = 3
SECONDS_A_STEP = 0.5


# --- the agent: everything that a user would write ------------------------------------------------


class Baker(Agent):
    async def bake(self) -> None:
        await self.start_fiber("bake", self.steps, 0, id="bake", wait=True)

    async def steps(self, fiber: FiberContext, done: int) -> None:
        while done < STEPS:
            await asyncio.sleep(SECONDS_A_STEP)  # the work of a step
            done += 1
            async with self.commit():  # its effect and the position, together or not at all
                times = await self.storage.get(f"step {done:02}", 0)
                await self.storage.put(f"step {done:02}", times + 1)
                await fiber.stash(done)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        fiber.resume(self.steps)


async def work(store: str) -> None:
    async with Host(agents=[Baker], store=store) as host:
        await host.get(Baker, "demo").bake()


# --- the demo: kills it and watches the store -----------------------------------------------------


class Demo:
    def __init__(self, folder: Path) -> None:
        self.database = folder / "demo.db"
        self.url = f"sqlite:///{self.database}"
        self.log: list[Text] = []
        self.kills = 0
        self.lives = 0
        self.worker: subprocess.Popen[bytes] | None = None
        self.chance = random.Random()

    def run(self, live: Live) -> None:
        try:
            self.kill_and_restart(live)
        finally:
            if self.worker is not None and self.worker.poll() is None:
                self.worker.kill()

    def kill_and_restart(self, live: Live) -> None:
        while True:
            self.start()
            deadline = time.monotonic() + self.chance.uniform(1.2, 1.9)
            while self.worker is not None and self.worker.poll() is None:
                live.update(self.picture())
                time.sleep(0.05)
                if self.kills < KILLS and time.monotonic() > deadline:
                    self.kill()
            live.update(self.picture())
            if self.worker is not None and self.worker.returncode == 0:
                self.say("worker finished", "green")
                live.update(self.picture())
                return
            if self.worker is not None and self.worker.returncode != -signal.SIGKILL:
                raise SystemExit(f"the worker failed (exit code {self.worker.returncode})")

    def start(self) -> None:
        self.lives += 1
        self.worker = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--worker", self.url]
        )
        again = "" if self.lives == 1 else ", it goes on where the store says"
        self.say(f"worker {self.lives} started (pid {self.worker.pid}){again}", "cyan")

    def kill(self) -> None:
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait()
        self.kills += 1
        done = sum(1 for count in self.stored().values() if count)
        self.say(f"kill -9 after {done} of {STEPS} steps", "bold red")

    def say(self, text: str, style: str) -> None:
        self.log.append(Text(f"{time.strftime('%H:%M:%S')}  {text}", style=style))

    def stored(self) -> dict[str, int]:
        """What stands in the store, read beside the worker."""
        if not self.database.exists():
            return {}
        try:
            with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as db:
                return {
                    key: int(value) for key, value in db.execute("SELECT key, value FROM storage")
                }
        except sqlite3.Error:
            return {}

    def picture(self) -> Group:
        stored = self.stored()
        table = Table(box=None, padding=(0, 1), show_header=False)
        for first in range(1, STEPS + 1, 5):
            table.add_row(*(self._step(step, stored) for step in range(first, first + 5)))
        done = sum(1 for count in stored.values() if count)
        bar = Text("█" * (4 * done), "green") + Text("░" * (4 * (STEPS - done)), "dim")
        title = f"ten durable steps · {done}/{STEPS} · killed {self.kills}/{KILLS} times"
        return Group(Panel(Group(bar, Text(), table), title=title, width=72), *self.log)

    def _step(self, step: int, stored: dict[str, int]) -> Text:
        count = stored.get(f"step {step:02}", 0)
        return Text(
            f"step {step:2} x{count}" if count else f"step {step:2} ·", "green" if count else "dim"
        )


def main() -> None:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="outlast-demo-") as folder:
        demo = Demo(Path(folder))
        with Live(demo.picture(), console=console, refresh_per_second=20) as live:
            demo.run(live)
        stored = demo.stored()
    expected = {f"step {step:02}": 1 for step in range(1, STEPS + 1)}
    if stored != expected or demo.kills != KILLS:
        console.print(f"[bold red]That went wrong:[/] {stored} after {demo.kills} kills")
        raise SystemExit(1)
    console.print(
        f"\n[bold green]Killed {KILLS} times, and each of the {STEPS} steps stands exactly once.[/]"
    )
    console.print("[dim]The agent is the class Baker in examples/killed_three_times.py.[/]")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        asyncio.run(work(sys.argv[2]))
    else:
        main()
