"""The worker under torture: clients that ask several agents for everything that is durable, at once.

A yard has sheds and a shed has benches; all three do the same work. What happens outside the store goes to a
journal, a file that outlasts the process: what was asked for, what was acknowledged, every effect.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import random
import re
from collections import defaultdict
from collections.abc import Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import torture_sabotage
from torture_jobs import Job, beat_of, life_of, new_job

from outlast import (
    Agent,
    FiberContext,
    FiberRecovery,
    FiberRecoveryContext,
    FiberResolution,
    Host,
    Retry,
    Schedule,
)
from outlast.agent.agent import parts_of
from outlast.core.errors import AgentAborted, AgentDestroyed, FiberInterrupted
from outlast.store.operations import Query

YARDS = 5
SHEDS = 2
BENCHES = 1
CLIENTS = 8
DRAINED_WITHIN = 60.0  # seconds; what is left then is for the checker to tell
INTERRUPTIONS = (AgentAborted, AgentDestroyed, FiberInterrupted)

LEFT = Query.same(
    "SELECT (SELECT count(*) FROM fibers WHERE settled_at IS NULL)"
    " + (SELECT count(*) FROM schedules) + (SELECT count(*) FROM alarms)"
)


class Wanted(Exception):
    """Raised by the work itself, as it was asked to."""


class Journal:
    """The world outside: lines that are there for good once they are written."""

    def __init__(self, folder: Path) -> None:
        orders = json.loads((folder / "orders.json").read_text())
        self.life: int = orders["life"]
        self.drains: bool = orders["drains"]
        self.since: int = orders["since"]  # the first life of this round
        self.begun_at = datetime.fromtimestamp(orders["begun_at"], UTC)  # the same as a time
        self.chance = random.Random(f"{orders['seed']} {self.life}")
        self.path = folder / orders["journal"]
        self.numbers = itertools.count(1)
        self.ended: list[str] = []  # the addresses of what was aborted or removed in this life
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, *values: Any) -> None:
        os.write(self._file, json.dumps([self.life, kind, *values]).encode() + b"\n")

    def effect(self, *values: Any) -> None:
        self.write("effect", *values)
        os.fsync(self._file)

    def new_id(self) -> str:
        return f"{self.life}-{next(self.numbers)}"

    def not_accepted(self) -> list[tuple[list[str], Job]]:
        """What clients of earlier lives have asked for, and had no answer."""
        waiting: dict[str, tuple[list[str], Job]] = {}
        for line in self.path.read_text().splitlines():
            _, kind, *values = json.loads(line)
            if kind == "wanted":
                waiting[values[1]["id"]] = (values[0], values[1])
            elif kind == "accepted":
                waiting.pop(values[0], None)
        return list(waiting.values())


journal: Journal  # of this process


class Working(Agent):
    """The work that yards, sheds and benches do alike."""

    fiber_recovery = FiberRecovery(retry=0.04, retry_at_most=0.2)

    def __init__(self) -> None:
        self.token = journal.new_id()  # of this activation
        self.tallying = asyncio.Lock()
        self.counting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.calls: defaultdict[str, int] = defaultdict(int)

    async def on_start(self) -> None:
        """Everything that this agent owns bears its incarnation, until it is removed."""
        self.address = parts_of(self).activation.address.text
        self.incarnation = await self.storage.get("incarnation")
        if self.incarnation is None:
            self.incarnation = journal.new_id()
            journal.write("born", self.address, self.incarnation)
            async with self.commit():
                await self.storage.put("incarnation", self.incarnation)
                await self._tally({"steps": 0, "pruned": 0, "last": self.incarnation})

    async def _tally(self, tally: dict[str, Any]) -> None:
        await self.set_state(tally)
        await self.storage.put("tally", tally)

    # --- what clients ask for --------------------------------------------------------------------

    async def ask(self, path: list[str], what: str, *arguments: Any) -> Any:
        """Call a method of the agent at this path below, which is made if it is new."""
        if not path:
            return await getattr(self, what)(*arguments)
        child = await self.sub_agent(self.sub_agents[0], path[0])
        return await child.ask(path[1:], what, *arguments)

    async def poke(self) -> None: ...

    async def accept(self, job: Job) -> None:
        """Begin a job. The second time it is the first one."""
        if job["kind"] == "fiber" and job["managed"] and not job["in_block"]:
            await self._admit_root(job)
        elif not await self.storage.get(f"begun/{self.incarnation}/{job['id']}"):
            async with self.commit():
                await self.storage.put(f"begun/{self.incarnation}/{job['id']}", 1)
                await self._admit_root(job)
        journal.write("accepted", job["id"], self.address, self.incarnation)

    async def await_end(self, job: Job) -> None:
        await self._admit_root(job, wait=True)

    async def cancel(self, job: Job) -> None:
        if await self.cancel_fiber(job["id"]):
            journal.write("cancelled", job["id"], self.incarnation)

    async def abort(self, name: str) -> None:
        journal.ended.append(f"{self.address}/{self.sub_agents[0].__name__}/{name}")
        await self.abort_sub_agent(self.sub_agents[0], name)

    async def remove(self, name: str) -> None:
        await self._journaled(
            f"{self.address}/{self.sub_agents[0].__name__}/{name}",
            self.delete_sub_agent(self.sub_agents[0], name),
        )

    async def end(self) -> None:
        await self._journaled(self.address, self.destroy())

    async def _journaled(self, address: str, removal: Awaitable[Any]) -> None:
        number = next(journal.numbers)
        journal.write("removing", number, address)
        journal.ended.append(address)
        await removal
        journal.write("removed", number)

    async def prune(self) -> None:
        """Forget the jobs of earlier rounds, here and below."""
        await self.delete_fibers(
            status=["completed", "error", "aborted", "interrupted"],
            settled_before=journal.begun_at,
            limit=500,
        )
        async with self.tallying:
            async with self.commit():
                tally = self.state
                for prefix in ("begun/", "beats/", "done/"):
                    for key, value in (await self.storage.list(prefix)).items():
                        job = key.split("/", 3 if prefix == "done/" else 2)[-1]
                        if life_of(job) < journal.since:
                            await self.storage.delete(key)
                            tally["pruned"] += value if key.startswith("done/T/") else 0
                if tally != self.state:
                    await self._tally(tally)
        for one in await self.list_sub_agents():
            child = await self.sub_agent(self.sub_agents[0], one.name)
            await child.prune()

    # --- admitting -------------------------------------------------------------------------------

    async def _admit_root(self, job: Job, *, wait: bool = False) -> None:
        """From a client's call: it has an id or a key, or stands in a block of its own."""
        plan = self._plan(job)
        if job["kind"] != "fiber":
            await self._schedule(plan)
        elif not job["managed"]:
            self.run_fiber(job["way"], self.work, plan)
        else:
            name = {"id": job["id"]} if job["by"] == "id" else {"idempotency_key": job["id"]}
            await self.start_fiber(
                job["way"], self.work, plan, wait=wait, metadata={"job": job["id"]}, **name
            )

    async def _admit(self, job: Job) -> None:
        """From inside other work: what it is recognised by is derived from where it stands."""
        if job["kind"] == "delegate":
            child = await self.sub_agent(self.sub_agents[0], job["to"])
            await child.take(job["work"], is_delegated=True)
        elif job["kind"] != "fiber":
            await self._schedule(self._plan(job))
        else:
            for _ in range(2 if job["twice"] else 1):
                await self.take(job)

    async def take(self, job: Job, *, is_delegated: bool = False) -> None:
        await self.start_fiber(job["way"], self.work, self._plan(job), metadata={"job": job["id"]})
        if is_delegated:
            journal.write("accepted", job["id"], self.address, self.incarnation)

    def _plan(self, job: Job) -> Job:
        return job | {"incarnation": self.incarnation, "at": 0}

    async def _schedule(self, job: Job) -> None:
        if job["kind"] == "every":
            await self.schedule_every(job["interval"], self.beat, job)
        elif job["kind"] == "cron":
            await self.schedule("* * * * * *", self.beat, job)
        elif job["kind"] == "once":
            retry = Retry(max_attempts=job["attempts"], base_delay=0.005, max_delay=0.02)
            await self.schedule(job["delay"], self.once, job, retry=retry)
        else:
            await self.schedule(job["delay"], self.demolish, job)

    # --- fibers ----------------------------------------------------------------------------------

    async def work(self, fiber: FiberContext, job: Job | None = None) -> None:
        job = job or fiber.snapshot  # without an input: in the place of another fiber
        assert job is not None
        while job["at"] < job["steps"]:
            step = job["at"] + 1
            self._effect(job["id"], step)
            await asyncio.sleep(journal.chance.choice((0, 0, 0.001, 0.005)))
            children = job["children"].get(str(step), ())
            if not job["in_block"]:
                for child in children:
                    await self._admit(child)
            job["at"] = step
            await self._count(fiber, job, children if job["in_block"] else ())
            journal.write("counted", self.incarnation, job["id"], step)
        if job["raises"]:
            raise Wanted(job["id"])

    async def _count(self, fiber: FiberContext, job: Job, children: Any) -> None:
        """A step: in the storage, in the state if it is tallied, and in the snapshot, together."""
        mark = "T" if job["tallied"] else "F"
        key = f"done/{mark}/{self.incarnation}/{job['id']}:{job['at']}"
        async with self.tallying if job["tallied"] else self.counting[key]:
            async with self.commit():
                await self.storage.put(key, await self.storage.get(key, 0) + 1)
                if job["tallied"]:
                    steps = self.state["steps"] + 1
                    await self._tally(self.state | {"steps": steps, "last": job["id"]})
                for child in children:
                    await self._admit(child)
                await fiber.stash(job)

    def _effect(self, id: str, what: int | str) -> None:
        journal.effect(self.token, self.incarnation, id, what)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> FiberResolution | None:
        if fiber.name == "settle":
            return FiberResolution("completed", metadata={"job": fiber.metadata["job"]})
        if fiber.name == "stubborn" and fiber.attempt == 1:
            raise Wanted(fiber.id)
        if fiber.name == "replace":
            self.run_fiber("replace", self.work)
        elif fiber.name != "drop":
            fiber.resume(self.work)
        return None

    # --- schedules -------------------------------------------------------------------------------

    async def once(self, job: Job) -> None:
        self.calls[job["id"]] += 1
        self._effect(job["id"], f"call {self.calls[job['id']]}")
        for child in job["children"]:
            await self._admit(child)
        if self.calls[job["id"]] <= job["fails"]:
            raise Wanted(job["id"])

    async def beat(self, job: Job, schedule: Schedule) -> None:
        time = round(schedule.time.timestamp() * 1000)
        self._effect(f"{job['id']}@{time}", "beat")
        for child in beat_of(job, time):
            await self._admit(child)
        key = f"beats/{self.incarnation}/{job['id']}"
        beats = await self.storage.get(key, [])
        if time not in beats:
            beats.append(time)
            await self.storage.put(key, beats)
        if len(beats) >= job["beats"]:
            await self.cancel_schedule(schedule.id)

    async def demolish(self, job: Job) -> None:
        self._effect(job["id"], "demolish")
        await self.end()


class Bench(Working): ...


class Shed(Working):
    sub_agents: ClassVar[Any] = [Bench]


class Yard(Working):
    sub_agents: ClassVar[Any] = [Shed]


# --- clients -------------------------------------------------------------------------------------


class Client:
    """Asks for one thing after another, and for the same again until it is acknowledged."""

    def __init__(self, host: Host, number: int) -> None:
        self._host = host
        self._number = number
        self._chance = random.Random(f"{journal.chance.random()} {number}")

    async def run(self) -> None:
        for count in itertools.count(1):
            await self._something(f"{journal.life}.{self._number}.{count}")
            await asyncio.sleep(self._chance.uniform(0, 0.05))

    async def submit(self, path: list[str], job: Job) -> None:
        while not await self._call(path, "accept", job):
            await asyncio.sleep(0.002)

    async def _something(self, id: str) -> None:
        chance = self._chance
        path = [f"y{chance.randrange(YARDS)}"]
        if chance.random() < 0.6:
            path.append(f"s{chance.randrange(SHEDS)}")
            if chance.random() < 0.4:
                path.append(f"b{chance.randrange(BENCHES)}")
        what = chance.choices(("job", "abort", "remove", "end"), weights=(87, 9, 2, 2))[0]
        if what == "job":
            await self._job(path, id)
        elif what == "end":
            if len(path) > 1 or chance.random() < 0.3:
                await self._call(path, "end")
        elif len(path) > 1:
            await self._call(path[:-1], what, path[-1])
            await asyncio.sleep(chance.choice((0, 0.01)))
            await self._call(path, "poke")  # what was aborted starts again when it is used

    async def _job(self, path: list[str], id: str) -> None:
        chance = self._chance
        sheds = [f"s{number}" for number in range(SHEDS)] if len(path) == 1 else []
        job = new_job(chance, id, sub_agents=sheds, is_root=len(path) == 1)
        journal.write("wanted", path, job)
        await self.submit(path, job)
        if job["kind"] == "fiber" and job["cancelled"]:
            await asyncio.sleep(chance.choice((0, 0.002, 0.01)))
            await self._call(path, "cancel", job)
        elif job["kind"] == "fiber" and job["managed"] and chance.random() < 0.3:
            await self._call(path, "await_end", job)

    async def _call(self, path: list[str], what: str, *arguments: Any) -> bool:
        """False: it was interrupted, because the agent was removed or aborted."""
        try:
            await self._host.get(Yard, path[0]).ask(path[1:], what, *arguments)
        except INTERRUPTIONS:
            return False
        except Exception as error:
            journal.write("trouble", f"{what} of {'/'.join(path)}: {error!r}")
            raise
        return True


class ToJournal(logging.Handler):
    """Nothing may go wrong except for what was asked to."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        message = record.getMessage()
        if isinstance(error, Wanted) or self._is_about_the_ended(message):
            return
        journal.write("trouble", f"{record.name}: {message} ({error!r})")

    def _is_about_the_ended(self, message: str) -> bool:
        """An alarm that is due while its agent is removed or aborted is tried again later."""
        found = re.match(r"alarm '\w+' of (\S+) failed, will retry: ", message)
        return found is not None and any(
            f"{found[1]}/".startswith(f"{address}/") for address in journal.ended
        )


async def drive(host: Host, folder: str, sabotage: str | None = None) -> None:
    global journal
    journal = Journal(Path(folder))
    torture_sabotage.apply(sabotage)
    logging.getLogger().addHandler(ToJournal(logging.ERROR))
    client = Client(host, 0)
    async with asyncio.TaskGroup() as group:
        group.create_task(_prune(host))
        for path, job in journal.not_accepted():
            group.create_task(client.submit(path, job))
        if not journal.drains:
            for number in range(1, CLIENTS + 1):
                group.create_task(Client(host, number).run())
    await _drain(host)


async def _prune(host: Host) -> None:
    for number in range(YARDS):
        while True:
            try:
                await host.get(Yard, f"y{number}").prune()
                break
            except INTERRUPTIONS:
                await asyncio.sleep(0.002)


async def _drain(host: Host) -> None:
    """Until nothing is left to do, now or later."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAINED_WITHIN
    while loop.time() < deadline:
        await host.until_settled()
        if (await host.store.fetch(LEFT))[0][0] == 0:
            break
        await asyncio.sleep(0.01)
    numbers = host.store.statistics()
    journal.write("statistics", {"largest_group": numbers.largest_group})
