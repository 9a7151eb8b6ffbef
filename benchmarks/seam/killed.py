"""One process with many conversations, SIGKILL in the middle of all their answers, and the next process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.seam.judged import Reading, measured
from benchmarks.seam.provider import Conversation, conversations, serving
from benchmarks.seam.worker import Plan

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place
    from benchmarks.seam.misbehaviours import Misbehaviour

CUT_WITHIN, OVER_WITHIN = 60.0, 90.0  # seconds
LONGEST_LINE = 2**20

QUESTIONS = (
    "What is a fish? One sentence.",
    "What is Python? One sentence.",
    "What is the sun?",
    "What is bread?",
)


@asynccontextmanager
async def working(plan: Plan) -> AsyncIterator[asyncio.subprocess.Process]:
    """Such a process, killed at the end of the block."""
    command = [sys.executable, "-m", "benchmarks.seam.worker", plan.to_json()]
    with open(log_of(plan), "ab") as log:  # noqa: ASYNC230
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=log, limit=LONGEST_LINE
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def told(process: asyncio.subprocess.Process) -> AsyncIterator[Any]:
    assert process.stdout is not None
    async for line in process.stdout:
        yield json.loads(line)


async def until_cut(plan: Plan, known: Sequence[Conversation]) -> dict[str, str]:
    """A first life, which dies when every reader has seen all that comes before the cut."""
    seen = dict.fromkeys(plan.questions, "")
    left = {each.id: each.seen for each in known}
    async with working(plan) as process, asyncio.timeout(CUT_WITHIN):
        async for line in told(process):
            seen[line["id"]] += line.get("delta", "")
            if seen[line["id"]] == left.get(line["id"]):
                del left[line["id"]]
            if not left:
                return seen
    raise RuntimeError(f"the worker ended early: see {log_of(plan)}")


async def until_over(plan: Plan, seen: dict[str, str]) -> dict[str, Reading]:
    """The next life, to the end of every answer."""
    readings = {id: Reading(text) for id, text in seen.items()}
    try:
        async with working(plan) as process, asyncio.timeout(OVER_WITHIN):
            async for line in told(process):
                hear(readings[line["id"]], line)
                if all(each.final is not None for each in readings.values()):
                    return readings
    except TimeoutError:
        pass
    return readings


def hear(reading: Reading, line: Any) -> None:
    """One thing that a reader is told, who has asked for all of the answer once more."""
    if "reset" in line:
        reading.text, reading.is_replaced = "", True
    reading.text += line.get("delta", "")
    is_new = reading.is_replaced or len(reading.text) > len(reading.seen)
    if is_new and reading.shown_at is None and "delta" in line:
        reading.shown_at = line["at"]
    if "final" in line:
        reading.final = line["final"]
        reading.is_paragraph = line.get("seam") == "new_paragraph"


def log_of(plan: Plan) -> Path:
    return Path(plan.directory) / "worker.log"


async def killed(
    system: str, way: str | None, known: Sequence[Conversation], directory: Path, next_url: str = ""
) -> Metrics:
    """All these conversations, in one process that is killed. `next_url`: who continues them instead."""
    directory.mkdir()  # noqa: ASYNC240
    async with serving(known) as url:
        questions = {each.id: each.question for each in known}
        plan = Plan(system, str(directory), url, questions, way=way)
        seen = await until_cut(plan, known)
        after = replace(plan, is_first=False, url=next_url or url)
        readings = await until_over(after, seen)
    return measured(known, [readings[each.id] for each in known])


def scripted(
    system: str, way: str | None, *behaving: Misbehaviour
) -> Callable[[Place, int], Metrics]:
    """A job's function: n answers of models that behave like this."""

    def run(place: Place, n: int) -> Metrics:
        known = [
            replace(one, id=f"{behave.__name__}-{one.id}")
            for behave in behaving
            for one in conversations(behave, n)
        ]
        return asyncio.run(killed(system, way, known, place.directory / "lives"))

    return run


def real(way: str) -> Callable[[Place, int], Metrics]:
    """A job's function: n cuts of answers that SmolLM2 continues."""

    def run(place: Place, n: int) -> Metrics:
        from outlast.demo.local_model import LocalModel

        with LocalModel(context=1024, threads=1, batch=1) as local:
            return asyncio.run(continued_by(local.url, way, n, place.directory))

    return run


async def continued_by(url: str, way: str, n: int, directory: Path) -> Metrics:
    known = await cut_answers(url, n, directory / "whole")
    return await killed("ours", way, known, directory / "lives", url)


async def cut_answers(url: str, n: int, directory: Path) -> list[Conversation]:
    """Answers of a real model that nobody interrupts, each cut n times between two pieces."""
    directory.mkdir()  # noqa: ASYNC240
    questions = {f"q{i}": question for i, question in enumerate(QUESTIONS)}
    pieces: dict[str, list[str]] = {id: [] for id in questions}
    finals = {}
    async with working(Plan("ours", str(directory), url, questions)) as process:
        async for line in told(process):
            if "delta" in line:
                pieces[line["id"]].append(line["delta"])
            elif "final" in line:
                finals[line["id"]] = line["final"]
            if len(finals) == len(questions):
                break
    return [
        Conversation(f"{id}-{k}", finals[id], said[:cut], question=questions[id])
        for id, said in pieces.items()
        for k, cut in enumerate(sorted({1 + (len(said) - 1) * k // n for k in range(n)}))
    ]
