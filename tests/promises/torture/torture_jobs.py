"""What the worker under torture is asked to do, and what must have come of it in the end.

A job is plain data: it travels to the agent as a fiber's input or a schedule's payload, and into the
journal, from which the checker tells what to expect. Ids are `life.client.number`, `…/n` for work that a job
admits, `…@time` for one beat. A step is `job:n`.

| kind | |
| --- | --- |
| `fiber` | so many steps, each with an effect outside and a count in the store; may admit others on its way |
| `once` | a one-shot schedule, whose callback admits others |
| `every` | an interval, whose callback admits others and cancels it after so many beats |
| `cron` | the same, each second |
| `delegate` | admitted by a callback at a sub-agent, through a stub |
| `demolish` | a one-shot whose callback destroys its own agent |
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Job = dict[str, Any]

# How a fiber that was left behind is taken up; its name says it.
WAYS_OF_PLAIN = ("resume", "replace", "stubborn", "drop")
WAYS_OF_MANAGED = ("resume", "replace", "settle")
CUT_SHORT = ("drop", "settle")  # by the hook: the rest of its steps is never made


def new_job(chance: random.Random, id: str, *, sub_agents: list[str], is_root: bool) -> Job:
    """Any job that a client may ask for."""
    kind = chance.choices(
        ("fiber", "once", "every", "cron", "demolish"),
        weights=(56, 28, 11, 4, 0 if is_root else 1),
    )[0]
    if kind == "fiber":
        return _fiber(chance, id, depth=0)
    if kind == "once":
        return _once(chance, id, depth=0, sub_agents=sub_agents)
    if kind == "every":
        return {
            "id": id,
            "kind": "every",
            "beats": chance.randint(1, 3),
            "interval": chance.uniform(0.01, 0.06),
        }
    if kind == "cron":
        return {"id": id, "kind": "cron", "beats": chance.randint(1, 2)}
    return {"id": id, "kind": "demolish", "delay": chance.uniform(0, 0.1)}


def _fiber(chance: random.Random, id: str, *, depth: int) -> Job:
    managed = depth > 0 or chance.random() < 0.6
    way = chance.choices(
        WAYS_OF_MANAGED if managed else WAYS_OF_PLAIN,
        weights=(70, 22, 8) if managed else (55, 20, 15, 10),
    )[0]
    cancelled = managed and not depth and chance.random() < 0.1
    steps = chance.randint(1, 4)
    children: dict[str, list[Job]] = {}
    if depth < 2 and chance.random() < 0.4:
        at = str(chance.randint(1, steps))
        children[at] = [
            _child(chance, f"{id}/{number}", depth=depth + 1)
            for number in range(1, chance.randint(1, 2) + 1)
        ]
    return {
        "id": id,
        "kind": "fiber",
        "way": way,
        "managed": managed,
        "by": "id" if cancelled else chance.choice(("id", "key")),
        "in_block": chance.random() < 0.5,
        "steps": steps,
        "tallied": chance.random() < 0.5,
        "raises": managed and chance.random() < 0.1,
        "cancelled": cancelled,
        "twice": depth > 0 and chance.random() < 0.15,  # the same admission, two times
        "children": children,
    }


def _child(chance: random.Random, id: str, *, depth: int) -> Job:
    if chance.random() < 0.5:
        return _fiber(chance, id, depth=depth)
    return _once(chance, id, depth=depth, sub_agents=[])


def _once(chance: random.Random, id: str, *, depth: int, sub_agents: list[str]) -> Job:
    children = [_fiber(chance, f"{id}/1", depth=depth + 1)]
    if depth < 2:
        children += [
            _child(chance, f"{id}/{number}", depth=depth + 1)
            for number in range(2, chance.randint(1, 3) + 1)
        ]
    delegates = bool(sub_agents) and chance.random() < 0.3
    if delegates:
        work = _fiber(chance, f"{id}/9", depth=2) | {"twice": False}
        children.append(
            {
                "id": f"{id}/9",
                "kind": "delegate",
                "to": chance.choice(sub_agents),
                "work": work,
            }
        )
    return {
        "id": id,
        "kind": "once",
        "delay": chance.choice((0.0, chance.uniform(0, 0.15))),
        # How often its callback raises; one that delegates does so too when the sub-agent is removed.
        "fails": chance.choices((0, 1, 99), weights=(75, 17, 0 if delegates else 8))[0],
        "attempts": 50 if delegates else 3,
        "children": children,
    }


def beat_of(job: Job, time: int) -> list[Job]:
    """What one beat of an interval or a cron schedule admits."""
    id = f"{job['id']}@{time}"
    plain = {
        "kind": "fiber",
        "way": "resume",
        "managed": True,
        "by": "key",
        "in_block": False,
        "steps": 1,
        "tallied": False,
        "raises": False,
        "cancelled": False,
        "twice": False,
        "children": {},
    }
    once = {"id": f"{id}/2", "kind": "once", "delay": 0.0, "fails": 0, "attempts": 3}
    return [plain | {"id": f"{id}/1"}, once | {"children": [plain | {"id": f"{id}/2/1"}]}]


def root_of(id: str) -> str:
    """The id of the job that a client has asked for, from that of a job or of a step."""
    return re.split("[/@:]", id, maxsplit=1)[0]


def life_of(id: str) -> int:
    return int(id.partition(".")[0])


@dataclass(frozen=True)
class Expected:
    """How often one step is counted in the store, once everything has ended."""

    least: int
    most: int


def expected_of(job: Job, times: list[int]) -> dict[str, Expected]:
    """Every step that a job leads to; `times` are those at which it beat, if it does."""
    steps: dict[str, Expected] = {}
    for work, is_certain, count in _works(job, times, True, 1):
        if work["kind"] == "fiber":
            least = count if is_certain and not is_cut_short(work) else 0
            for step in range(1, work["steps"] + 1):
                steps[f"{work['id']}:{step}"] = Expected(least, count)
    return steps


def is_cut_short(work: Job) -> bool:
    """True when a fiber may end before it has made all of its steps."""
    return work["way"] in CUT_SHORT or work["cancelled"]


def fibers_of(job: Job) -> Iterator[Job]:
    """Every fiber that a job leads to, except for beats."""
    return (work for work, _, _ in _works(job, [], True, 1) if work["kind"] == "fiber")


def counts_of(job: Job) -> dict[str, int]:
    """How many of each piece of work a job leads to."""
    return {work["id"]: count for work, _, count in _works(job, [], True, 1)}


def delegates_of(job: Job) -> list[Job]:
    """What the callback of a job admits at sub-agents."""
    return [one for one in job.get("children", ()) if isinstance(one, dict) and "to" in one]


def _works(
    job: Job, times: list[int], is_certain: bool, count: int
) -> Iterator[tuple[Job, bool, int]]:
    """A job and all that it admits at its own agent: is it sure to come, and how many of it."""
    if job["kind"] == "delegate":
        return
    children = job.get("children", [])
    if job["kind"] == "fiber":
        count *= 2 if job["twice"] else 1
        children = [child for several in children.values() for child in several]
    elif job["kind"] in ("every", "cron"):
        children = [child for time in times for child in beat_of(job, time)]
    yield job, is_certain, count
    if job["kind"] == "fiber":
        is_certain = is_certain and not is_cut_short(job)
    for child in children:
        yield from _works(child, times, is_certain, count)
