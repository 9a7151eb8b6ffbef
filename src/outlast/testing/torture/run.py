"""The run: a server, its users, and somebody who kills it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from outlast.client import CallFailed
from outlast.testing.torture.checks import (
    FAILED,
    RUNNING,
    SPINNING,
    Effects,
    Violation,
    audit,
)
from outlast.testing.torture.journal import Journal, JournalReader
from outlast.testing.torture.poison import GIVEN_UP, run_poison
from outlast.testing.torture.report import Outcome
from outlast.testing.torture.rows import Fetches, reader, rows_of, unfinished
from outlast.testing.torture.server import database
from outlast.testing.torture.server import environment as settings
from outlast.testing.torture.server.database import Gateway
from outlast.testing.torture.server.memory import BY_GROUP, BY_LIMIT, Group, group
from outlast.testing.torture.server.process import TorturedServer, kills
from outlast.testing.torture.users.user import TURNS, User, stable
from outlast.testing.torture.users.watcher import Conversation, Watcher

GREETINGS = 5  # connections after which somebody who waits should have heard something
GIVEN_UP_WITHIN = 60.0  # seconds, for a turn that kills its process
HEARD_WITHIN = 20.0  # seconds that a kill waits for the server to be of use to somebody

Tell = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How much of it, and where."""

    folder: Path
    store: str  # a URL
    kills: int = 1000
    agents: int = 50
    seed: int = 1
    minutes: float | None = None  # at most so long, however many kills that makes
    turns: int = TURNS  # of one conversation
    settle_within: float = 120.0  # seconds, after the last kill
    stuck_after: float = 180.0  # seconds without a chunk
    sabotage: str | None = None
    poison: bool = False  # nobody kills the server but a turn that kills its process
    may_crash_database: bool = False  # it is a server of its own


async def torture(options: Options, tell: Tell = lambda outcome: None) -> Outcome:
    """Run it. Whether all is well is in the outcome."""
    with group() as memory:
        async with reader(options.store) as store:
            if options.store.startswith("sqlite:"):
                return await _Run(options, tell, store, memory).run()
            crashes = options.may_crash_database
            async with Gateway(options.store, may_crash=crashes) as gateway:
                return await _Run(options, tell, store, memory, gateway).run()


class _Run:
    def __init__(
        self,
        options: Options,
        tell: Tell,
        store: Fetches,
        memory: Group | None,
        gateway: Gateway | None = None,
    ) -> None:
        self._options = options
        self._gateway = gateway  # to a database with misfortunes of its own
        self._tell = tell
        self._store = store
        by = BY_LIMIT if memory is None else BY_GROUP
        self._runs_without_memory = memory is None  # until it is killed, and may say anything
        engine = options.store.partition(":")[0]
        self._outcome = Outcome(options.seed, engine, options.agents, by, folder=options.folder)
        served = options.folder / "served.jsonl"
        environment = {settings.JOURNAL: str(served), settings.MEMORY: by}
        if options.sabotage is not None:
            environment[settings.SABOTAGE] = options.sabotage
        url = options.store if gateway is None else gateway.url
        self._server = TorturedServer(options.folder, url, environment=environment, group=memory)
        self._server.may_miss_store = gateway is not None
        self._journal = Journal(options.folder / "clients.jsonl")
        self._effects_read = JournalReader(served)
        self._effects = Effects()
        self._stopping = asyncio.Event()
        self._talking: dict[int, Conversation] = {}
        self._last: list[str] = []  # the agents that were talked to last
        self._killed_at: float | None = None
        self._heard = asyncio.Event()  # a new chunk, since the last kill
        self._started = time.monotonic()

    async def run(self) -> Outcome:
        self._server.start()
        try:
            await self._torture()
        finally:
            await self._server.stop()
            self._journal.close()
        complaints = [] if self._runs_without_memory else self._server.complaints()
        deaths = [] if self._options.poison else self._server.died_by_themselves()
        for line in (*deaths, *complaints):
            self._violations([Violation(FAILED, "the server", "", line)])
        for agent, text in await unfinished(self._store):
            self._violations([Violation(RUNNING, agent, "", text)])
        self._progress()
        return self._outcome

    async def _torture(self) -> None:
        users = [asyncio.create_task(self._user(n)) for n in range(self._options.agents)]
        hurt = self._poison() if self._options.poison else self._kill()
        others = [asyncio.create_task(hurt), asyncio.create_task(self._watch())]
        try:
            for task in (*users, *others):  # whoever ends early, ends all
                task.add_done_callback(lambda _: self._stopping.set())
            await self._stopping.wait()
            if self._outcome.is_clean:
                await asyncio.wait(users, timeout=self._options.settle_within)
            for task in (*users, *others):
                if task.done():
                    task.result()
            if self._outcome.is_clean:
                self._left_over()
            if self._outcome.is_clean:
                await self._reconnect()
        finally:
            for task in (*users, *others):
                task.cancel()
            await asyncio.wait((*users, *others))

    # --- who does something ----------------------------------------------------------------------

    async def _user(self, number: int) -> None:
        """One conversation after another, each looked at when it is over."""
        chance = random.Random(f"{self._options.seed} user {number}")
        count = 0
        while not self._stopping.is_set():
            said = Conversation(f"a{number}.{count}", on_fresh=self._fresh)
            said.on_greeting = partial(self._greeted, said.agent)
            self._talking[number] = said
            user = User(self._server.url, said, chance, self._journal)
            await user.talk(self._stopping, self._options.turns)
            rows = await rows_of(self._store, said.agent)
            self._effects.read(self._effects_read.new())
            del self._talking[number]
            totals = self._outcome.totals
            found = audit(said, rows, self._effects, totals, may_fail=self._runs_without_memory)
            self._violations(found)
            self._outcome.late += [each.late for each in said.turns if each.late is not None]
            count += 1
            if self._stopping.is_set():
                self._last.append(said.agent)

    async def _kill(self) -> None:
        options = self._options
        more = {} if self._gateway is None else database.KINDS
        for kill in kills(options.seed, options.kills, more):
            await self._server.until_worker()
            if not kill.is_early:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._heard.wait(), HEARD_WITHIN)
            await asyncio.sleep(kill.after)
            if self._gateway is not None and kill.kind in database.KINDS:
                self._killed_at = await self._gateway.strike(kill.kind)
            else:
                self._killed_at = await self._server.strike(kill.kind)
            self._heard.clear()
            self._outcome.kills[kill.kind] += 1
            self._journal.write("kill", how=kill.kind, after=round(kill.after, 3))
            self._progress()
            elapsed = time.monotonic() - self._started
            if options.minutes is not None and elapsed > options.minutes * 60:
                return

    async def _poison(self) -> None:
        """One turn kills its process whenever it runs. It must be given up, and nobody else."""
        await self._heard.wait()
        began = time.monotonic()
        deaths = len(self._server.died_by_themselves())
        end = await run_poison(self._server.url, GIVEN_UP_WITHIN)
        seconds = time.monotonic() - began
        deaths = len(self._server.died_by_themselves()) - deaths
        self._outcome.poison = f"{end} after {seconds:.1f} s and {deaths} deaths"
        if end != GIVEN_UP:
            self._violations([Violation(SPINNING, "poison", "", self._outcome.poison)])

    def _fresh(self) -> None:
        """Somebody has seen a chunk that nobody has seen before."""
        if self._killed_at is not None:
            self._outcome.silences.append(max(0.0, time.monotonic() - self._killed_at))
            self._killed_at = None
        self._heard.set()

    def _greeted(self, agent: str, tab: int) -> None:
        self._journal.write("connected", agent=agent, tab=tab)

    async def _watch(self) -> None:
        """Nobody waits for longer than a recovery may take.

        Whoever was not even connected since waits for the machine: kills follow one another, and on a
        busy one a worker may be gone before it has come to everybody.
        """
        while not self._stopping.is_set() and self._outcome.is_clean:
            await asyncio.sleep(1)
            for said in self._talking.values():
                for turn in said.turns:
                    silent = time.monotonic() - turn.heard_at
                    is_stuck = silent > self._options.stuck_after and turn.greetings >= GREETINGS
                    if turn.end is None and is_stuck:
                        text = (
                            f"nothing was heard for {silent:.0f} s and {turn.greetings} connections"
                        )
                        violation = Violation(SPINNING, said.agent, turn.plan.label, text)
                        self._violations([violation])

    # --- the end ---------------------------------------------------------------------------------

    def _left_over(self) -> None:
        """Whoever still waits."""
        for said in self._talking.values():
            waiting = [turn.plan.label for turn in said.turns if turn.end is None]
            text = f"not over {self._options.settle_within:g} s after the last kill: {waiting}"
            self._violations([Violation(SPINNING, said.agent, "", text)])

    async def _reconnect(self) -> None:
        """A client that comes now finds an agent that does nothing, and says so."""
        for agent in self._last:
            said = Conversation(agent)
            async with Watcher(self._server.url, said) as client:
                try:
                    async with asyncio.timeout(30):
                        await stable(client)
                        found = await client.call("incidents")
                except (TimeoutError, CallFailed) as error:
                    found = [{"state": f"no answer: {error}"}]
                open_ones = [each for each in found if each["state"] != "exhausted"]
                if client.is_recovering or open_ones:
                    text = f"a new client finds it recovering: {open_ones}"
                    self._violations([Violation(SPINNING, agent, "", text)])

    def _violations(self, found: list[Violation]) -> None:
        self._outcome.violations += found
        if found:
            self._stopping.set()

    def _progress(self) -> None:
        self._outcome.seconds = time.monotonic() - self._started
        turns = [turn for said in self._talking.values() for turn in said.turns]
        self._outcome.turns = self._outcome.totals.turns + sum(t.end is not None for t in turns)
        chunks = sum(said.chunks for said in self._talking.values())
        self._outcome.chunks = self._outcome.totals.chunks + chunks
        with contextlib.suppress(OSError):
            self._tell(self._outcome)
