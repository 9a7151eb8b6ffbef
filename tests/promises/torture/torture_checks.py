"""What must hold in the store at every kill, and what once everything has ended.

The ledger knows from the journal what was asked for and acknowledged; the store must agree with it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torture_jobs import (
    Expected,
    Job,
    counts_of,
    delegates_of,
    expected_of,
    fibers_of,
    is_cut_short,
    life_of,
    root_of,
)
from torture_snapshot import Snapshot

MOST_SHOWN = 20
ENDS = {"completed", "error", "aborted", "interrupted"}
Work = tuple[str, str]  # an incarnation and the id of a job


class Violation(AssertionError):
    """Something was lost, repeated or stuck. The message says what."""


@dataclass
class Removal:
    """From when to when an agent and all below it were being removed, in lines of the journal."""

    address: str
    start: int
    end: int | None = None  # None: it is under way
    is_complete: bool = False

    def covers(self, address: str) -> bool:
        return address == self.address or address.startswith(f"{self.address}/")


@dataclass
class Totals:
    steps: int = 0
    effects: int = 0
    repeated: int = 0
    jobs: int = 0
    gone: int = 0  # jobs that went with their agent
    removals: int = 0
    largest_group: int = 0


class Ledger:
    """What the journal tells. `problems` are those that show in the journal itself."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.totals = Totals()
        self.born: dict[str, tuple[str, int]] = {}  # incarnation: address, line
        self.stored: set[str] = set()  # incarnations that are known to have been durable
        self.removals: list[Removal] = []
        self.running: set[Work] | None = None  # what had not ended at the last kill
        self._seen: set[Work] = set()  # what has had effects, up to the last kill
        self._line = 0

    def begin_round(self, path: Path, since: int) -> None:
        self.path = path
        self.since = since
        self._offset = 0
        self.jobs: dict[str, Job] = {}  # what clients asked for, and what was delegated
        self.counts: dict[str, int] = {}  # how many of each piece of work there may be
        self.accepted: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        self.counted: dict[tuple[str, str], int] = {}  # incarnation, step: how often
        self.cancelled: set[Work] = set()
        self.effects: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._latest: dict[Work, int] = {}
        self._by_activation: defaultdict[tuple[str, ...], int] = defaultdict(int)

    def read_life(self) -> None:
        """Everything that the latest life has written."""
        under_way: dict[int, Removal] = {}
        active: set[Work] = set()
        for line in self._new_lines():
            self._line += 1
            life, kind, *values = json.loads(line)
            if kind == "removing":
                number, address = values
                under_way[number] = removal = Removal(address, self._line)
                self.removals.append(removal)
            elif kind == "removed":
                removal = under_way.pop(values[0])
                removal.end, removal.is_complete = self._line, True
                self.totals.removals += 1
            elif kind == "effect":
                active.add(self._effect(*values))
            else:
                getattr(self, f"_{kind}")(*values)
        for removal in under_way.values():
            removal.end = self._line
        if self.running is not None:
            for incarnation, id in (active & self._seen) - self.running:
                if self.counts.get(id, 1) == 1:
                    self.problems.append(
                        f"{id} of {incarnation} had ended before the last kill, and was run again"
                    )
        self._seen |= active

    def _new_lines(self) -> list[bytes]:
        """A line that a kill cut in two was not written."""
        if not self.path.exists():
            return []
        with open(self.path, "r+b") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
            self._offset += len(whole) + 1 if whole else 0
            file.truncate(self._offset)
        return whole.splitlines()

    def _born(self, address: str, incarnation: str) -> None:
        self.born[incarnation] = (address, self._line)

    def _wanted(self, path: list[str], job: Job) -> None:
        for one in (job, *(each["work"] for each in delegates_of(job))):
            self.jobs[one["id"]] = one
            self.counts |= counts_of(one)

    def _accepted(self, id: str, address: str, incarnation: str) -> None:
        self.accepted[id].add((address, incarnation))
        self.stored.add(incarnation)

    def _effect(self, token: str, incarnation: str, id: str, what: int | str) -> Work:
        self.totals.effects += 1
        step, most = f"{id}:{what}", self.counts.get(id, 1)
        self.effects[incarnation, step] += 1
        self.totals.repeated += self.effects[incarnation, step] > most
        self._by_activation[token, incarnation, step] += 1
        if self._by_activation[token, incarnation, step] > most:
            self.problems.append(f"the effect {step} was repeated, though nothing was interrupted")
        if self.counted.get((incarnation, step), 0) >= most:
            self.problems.append(f"the effect {step} was repeated, though its step was counted")
        work = (incarnation, id)
        if isinstance(what, int) and most == 1:
            if what < self._latest.get(work, 0):
                self.problems.append(f"{id} of {incarnation} went back to step {what}")
            self._latest[work] = what
        return work

    def _counted(self, incarnation: str, id: str, step: int) -> None:
        self.totals.steps += 1
        key = (incarnation, f"{id}:{step}")
        self.counted[key] = self.counted.get(key, 0) + 1
        self.stored.add(incarnation)

    def _cancelled(self, id: str, incarnation: str) -> None:
        self.cancelled.add((incarnation, id))

    def _trouble(self, text: str) -> None:
        self.problems.append(f"the worker says: {text}")

    def _statistics(self, numbers: dict[str, int]) -> None:
        self.totals.largest_group = max(self.totals.largest_group, numbers["largest_group"])


@dataclass
class Checker:
    """Compares the ledger with the store."""

    ledger: Ledger = field(default_factory=Ledger)

    def at_a_kill(self, store: Snapshot) -> None:
        """What holds in whatever state a process left the store."""
        problems = self.ledger.problems
        problems += (
            *_owners(store),
            *_alarms(store),
            *_admissions(store),
            *_fibers(store),
            *_tallies(store),
            *self._incarnations(store),
            *self._acknowledged(store),
        )
        _raise_for(problems)
        self.ledger.running = set(_running(store))

    def at_the_end(self, store: Snapshot) -> None:
        """What holds on top of that once nothing is left to do."""
        self.at_a_kill(store)
        _raise_for([*_stuck(store), *self._jobs(store)])

    def _incarnations(self, store: Snapshot) -> Iterator[str]:
        """A removed agent is gone as a whole, and every other one is there as a whole."""
        ledger = self.ledger
        for agent in store.agents:
            found = store.incarnation(agent)
            if found is not None:
                ledger.stored.add(found)
                if ledger.born.get(found, ("", 0))[0] != agent:
                    yield f"{agent} has the incarnation {found}, which was never made there"
        for agent, incarnation, what in _marks(store):
            found = store.incarnation(agent)
            if found is not None and incarnation != found:
                yield f"{agent} is {found} by now, but {what} is left of {incarnation}"
        for incarnation, (address, line) in ledger.born.items():
            is_there = store.incarnation(address) == incarnation
            removals = [one for one in ledger.removals if one.covers(address)]
            if is_there and any(one.is_complete and one.start > line for one in removals):
                yield f"{address} ({incarnation}) was removed, and is there again"
            was_removed = any(one.end is None or one.end > line for one in removals)
            if not is_there and incarnation in ledger.stored and not was_removed:
                yield f"{address} ({incarnation}) is gone, though nobody removed it"

    def _acknowledged(self, store: Snapshot) -> Iterator[str]:
        """Whatever somebody was told is there; nothing is counted more often than it may be."""
        ledger = self.ledger
        for id, address, incarnation in self._accepted(store):
            if not _is_begun(store, id, address, incarnation):
                yield f"{id} was accepted by {address} ({incarnation}), which knows nothing of it"
        done = {}
        for agent, stored in store.storage.items():
            for key, count in stored.items():
                if not key.startswith("done/"):
                    continue
                _, _, incarnation, step = key.split("/", 3)
                done[incarnation, step] = count
                if life_of(step) < ledger.since:
                    continue  # of an earlier round
                if root_of(step) not in ledger.jobs:
                    yield f"{agent} has counted {step}, which nobody has asked for"
                most = ledger.counts.get(step.rpartition(":")[0], 1)
                if count > most:
                    yield f"{agent} has counted {step} {_times(count)} instead of {_times(most)}"
        there = {found for agent in store.agents if (found := store.incarnation(agent))}
        for (incarnation, step), count in ledger.counted.items():
            if incarnation in there and done.get((incarnation, step), 0) < count:
                yield f"{step} was committed by {incarnation}, and is not in the store"

    def _accepted(self, store: Snapshot) -> Iterator[tuple[str, str, str]]:
        """The jobs that were accepted by agents that are still there."""
        for id, places in self.ledger.accepted.items():
            for address, incarnation in places:
                if store.incarnation(address) == incarnation:
                    yield id, address, incarnation

    def _jobs(self, store: Snapshot) -> Iterator[str]:
        """Everything that was asked for has been done, once; and nothing else."""
        ledger = self.ledger
        ledger.totals.jobs += len(ledger.jobs)
        allowed: defaultdict[str, set[str]] = defaultdict(set)
        present = set()
        for id, address, incarnation in self._accepted(store):
            present.add(id)
            job, stored = ledger.jobs[id], store.storage[address]
            if job["kind"] == "demolish":
                yield f"{address} ({incarnation}) is there, though {id} was to demolish it"
            times = stored.get(f"beats/{incarnation}/{id}", [])
            if len(times) != job.get("beats", 0):
                yield f"{id} of {address} beat {len(times)} times instead of {job['beats']}"
            done = _done(stored, incarnation)
            steps = expected_of(job, times)
            allowed[address] |= steps.keys()
            yield from self._counts(address, incarnation, done, steps)
            yield from _contiguous(job, done)
            yield from self._ends(store, job, address, incarnation)
            for one in delegates_of(job):
                if one["id"] not in ledger.accepted:
                    yield f"{one['id']} was to be delegated by {address}, and nobody has got it"
        for address, stored in store.storage.items():
            incarnation = store.incarnation(address) or ""
            for step in _done(stored, incarnation).keys() - allowed[address]:
                yield f"{address} has counted {step}, which is no part of what it was to do"
        for id in ledger.jobs.keys() - ledger.accepted.keys():
            if "/" not in id:
                yield f"{id} was asked for and never accepted"
        ledger.totals.gone += len(ledger.jobs.keys() - present)

    def _counts(
        self, address: str, incarnation: str, done: dict[str, int], steps: dict[str, Expected]
    ) -> Iterator[str]:
        for step, expected in steps.items():
            count = done.get(step, 0)
            if not expected.least <= count <= expected.most:
                wanted = _times(expected.least)
                yield f"{address} has counted {step} {_times(count)} instead of {wanted}"
            if self.ledger.effects[incarnation, step] < count:
                yield f"{address} has counted {step} {_times(count)}, with fewer effects outside"

    def _ends(self, store: Snapshot, job: Job, address: str, incarnation: str) -> Iterator[str]:
        """How managed fibers have ended."""
        for work in fibers_of(job):
            allowed = {"error" if work["raises"] else "completed"}
            if work["way"] == "settle":
                allowed.add("completed")
            if (incarnation, work["id"]) in self.ledger.cancelled:
                allowed = {"aborted"}
            elif work["cancelled"]:
                allowed.add("aborted")
            for row in store.fibers_of.get((address, work["id"]), ()):
                if row.status not in allowed:
                    wanted = " or ".join(sorted(allowed))
                    yield f"{work['id']} of {address} has ended as {row.status} instead of {wanted}"


# --- about the store alone -----------------------------------------------------------------------


def _owners(store: Snapshot) -> Iterator[str]:
    """Whoever owns rows was made and is registered, up to its root."""
    for agent in sorted(store.agents):
        if store.incarnation(agent) is None:
            yield f"{agent} has rows ({_tables(store, agent)}), but no incarnation"
        segments = agent.split("/")
        if "/".join(segments[:2]) not in store.roots:
            yield f"{agent} has rows, but its root has none in agents"
        for end in range(4, len(segments) + 1, 2):
            parent, kind, name = "/".join(segments[: end - 2]), *segments[end - 2 : end]
            if (parent, kind, name) not in store.sub_agents:
                yield f"{agent} has rows ({_tables(store, agent)}), but {parent} has no {kind} {name}"
    for root in store.roots:
        if store.incarnation(root) is None:
            yield f"{root} stands in agents, and has nothing"


def _alarms(store: Snapshot) -> Iterator[str]:
    """The alarm of schedules is the earliest that is not claimed."""
    earliest: dict[str, int] = {}
    for row in store.schedules:
        if row.claimed_at is None:
            earliest[row.agent] = min(row.run_at, earliest.get(row.agent, row.run_at))
    set_to = {agent: wake_at for agent, source, wake_at in store.alarms if source == "schedules"}
    for agent in earliest.keys() | set_to.keys():
        if earliest.get(agent) != set_to.get(agent):
            yield (
                f"{agent} has its alarm set to {set_to.get(agent)}, but its schedules say"
                f" {earliest.get(agent)}"
            )


def _admissions(store: Snapshot) -> Iterator[str]:
    """What was admitted is noted as long as the work around it can run again, and no longer."""
    origins = {(row.agent, f"schedule:{row.id}") for row in store.schedules}
    origins |= {
        (row.agent, f"fiber:{row.root_id}") for row in store.fibers if row.settled_at is None
    }
    for agent, origin, _ in store.admissions:
        if (agent, origin) not in origins:
            yield f"{agent} has noted what {origin} admitted, which is gone"
    for agent, origin in store.pasts:
        if (agent, origin) not in origins:
            yield f"{agent} knows what {origin} has run, which is gone"


def _fibers(store: Snapshot) -> Iterator[str]:
    for row in store.fibers:
        is_over = row.settled_at is not None
        if is_over and (not row.managed or row.status not in ENDS):
            yield f"the fiber {row.id} of {row.agent} is over and {row.status}"
        if not is_over and row.status not in ("pending", "running", "interrupted"):
            yield f"the fiber {row.id} of {row.agent} is {row.status} and not over"


def _tallies(store: Snapshot) -> Iterator[str]:
    """The state, and what was written to the storage in the same commits."""
    for agent, stored in store.storage.items():
        tally = stored.get("tally")
        if tally != store.state.get(agent):
            yield f"{agent} has the state {store.state.get(agent)}, but its storage says {tally}"
            continue
        counted = sum(value for key, value in stored.items() if key.startswith("done/T/"))
        if tally is not None and tally["steps"] - tally["pruned"] != counted:
            yield f"{agent} has tallied {tally}, but {counted} steps are in its storage"


def _stuck(store: Snapshot) -> Iterator[str]:
    for row in store.fibers:
        if row.settled_at is None:
            yield f"the fiber {row.id} ({row.name}) of {row.agent} is stuck: {row.status}"
    for one in store.schedules:
        how = "claimed" if one.claimed_at is not None else f"due at {one.run_at}"
        yield f"the schedule {one.id} ({one.kind}) of {one.agent} is stuck: {how}"
    for agent, source, wake_at in store.alarms:
        yield f"{agent} has an alarm for its {source} at {wake_at}, and nothing to do"
    for agent, origin, _ in store.admissions:
        yield f"{agent} has noted what {origin} admitted, and everything has ended"


def _running(store: Snapshot) -> Iterator[Work]:
    """The work that has not ended, and may go on in the next life."""
    for row in store.fibers:
        if row.settled_at is None:
            yield row.snapshot["incarnation"], row.snapshot["id"]
    for one in store.schedules:
        at = f"@{one.occurrence}" if one.kind in ("interval", "cron") else ""
        yield one.payload["incarnation"], f"{one.payload['id']}{at}"


def _marks(store: Snapshot) -> Iterator[tuple[str, str, str]]:
    """Each row, with its agent and the incarnation that it bears."""
    for agent, stored in store.storage.items():
        for key in stored:
            kind, *rest = key.split("/")
            if kind in ("begun", "beats", "done"):
                yield agent, rest[1 if kind == "done" else 0], f"the key {key}"
    for row in store.fibers:
        yield row.agent, row.snapshot["incarnation"], f"the fiber {row.id}"
    for one in store.schedules:
        yield one.agent, one.payload["incarnation"], f"the schedule {one.id}"


def _tables(store: Snapshot, agent: str) -> str:
    return ", ".join(table for table, owners in store.owners.items() if agent in owners)


def _is_begun(store: Snapshot, id: str, address: str, incarnation: str) -> bool:
    is_noted = f"begun/{incarnation}/{id}" in store.storage[address]
    return is_noted or (address, id) in store.fibers_of


def _done(stored: dict[str, Any], incarnation: str) -> dict[str, int]:
    """The steps that are counted in a storage."""
    return {
        key.split("/", 3)[3]: count
        for key, count in stored.items()
        if key.startswith("done/") and key.split("/")[2] == incarnation
    }


def _contiguous(job: Job, done: dict[str, int]) -> Iterator[str]:
    """Of a fiber that was cut short, the first steps are made and the rest is not."""
    for work in fibers_of(job):
        if is_cut_short(work):
            made = [f"{work['id']}:{step}" in done for step in range(1, work["steps"] + 1)]
            if made != sorted(made, reverse=True):
                yield f"{work['id']} has left out a step: {made}"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _raise_for(problems: list[str]) -> None:
    if problems:
        shown = [f"* {problem}" for problem in problems[:MOST_SHOWN]]
        if len(problems) > MOST_SHOWN:
            shown.append(f"… and {len(problems) - MOST_SHOWN} more")
        raise Violation("\n".join(shown))
