"""SIGKILL for real, again and again, in one turn: progress is kept, and no progress comes to an end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable

import pytest
from pydantic_ai.messages import ModelMessage

from outlast import ChatRecovery, Host, Think
from outlast.testing import ScriptedModel, Step, Worker

pytestmark = pytest.mark.usefixtures("forks")

ANSWER = " ".join(f"word-{number}" for number in range(140))
GIVEN_UP = "I give up."


def say(line: str) -> None:
    """A write to a pipe outlasts its writer."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def die_soon() -> None:
    """This process, by SIGKILL, in the middle of the answer that was asked for now; not pytest."""
    if not sys.argv[0].endswith("worker.py"):
        return
    timer = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()


def tell(messages: list[ModelMessage]) -> Step:
    """The rest of the story."""
    parts = [part for message in messages for part in message.parts if part.part_kind == "text"]
    told = "".join(str(part.content) for part in parts)
    assert ANSWER.startswith(told), "a model is shown what it has said, once"
    say("asked")
    die_soon()
    return Step.text(ANSWER[len(told) :], delay=0.01)


def be_silent(_: list[ModelMessage]) -> Step:
    say("asked")
    return Step.stalls()


def be_silent_and_die(messages: list[ModelMessage]) -> Step:
    die_soon()
    return be_silent(messages)


class Narrator(Think):
    model = ScriptedModel.answering(tell)


class Silent(Think):
    """Never says anything, and nothing here notices: but the process dies."""

    model = ScriptedModel.answering(be_silent_and_die)
    chat_recovery = ChatRecovery(no_progress_timeout=2, terminal_message=GIVEN_UP)


class Stalling(Think):
    """The same, and it is noticed."""

    model = ScriptedModel.answering(be_silent)
    chat_stream_stall_timeout = 0.1
    chat_recovery = ChatRecovery(max_attempts=2, terminal_message=GIVEN_UP)


async def drive(host: Host, name: str) -> None:
    """Ask once, and follow what comes of it from the beginning."""
    agent = host.get({"Narrator": Narrator, "Silent": Silent, "Stalling": Stalling}[name], "n")
    asked = await agent.submit_messages("Well?", idempotency_key="well")
    say(f"accepted {asked.id}")
    async for seq, chunk in agent.resume_stream(asked.id):
        say(f"seen {asked.id} {seq} {json_of(chunk)}")


def json_of(chunk: object) -> str:
    return json.dumps(chunk, sort_keys=True)


def lines_of(output: str) -> list[str]:
    """Without the line in the middle of which it died."""
    return output[: output.rfind("\n") + 1].splitlines()


def run(worker: Worker, most: int) -> tuple[list[str], int]:
    """Start it until it ends by itself: what it wrote, and how often it was killed."""
    lines: list[str] = []
    for kills in range(most + 1):
        ended = worker.run()
        lines += lines_of(ended.output)
        if not ended.killed:
            return lines, kills
    raise AssertionError(f"it did not come to its end in {most} lives")


def check_seen(lines: list[str]) -> None:
    """Whoever reads again reads the same, and only more of it."""
    seen: dict[int, str] = {}
    for line in lines:
        if line.startswith("seen "):
            _, _, seq, chunk = line.split(" ", 3)
            assert seen.setdefault(int(seq), chunk) == chunk
    assert len({line for line in lines if line.startswith("accepted ")}) == 1


async def stored(agent: type[Think], url: str) -> tuple[str | None, str | None, str]:
    """How the turn has ended, and its answer."""
    import chat_rows

    from outlast.store.operations import Query

    address = f"{agent.__name__}/n"
    async with Host([agent], url) as host:
        await host.until_settled()
        rows = await chat_rows.stored(host, address)
        chat_rows.check_all_ended(rows)
        chat_rows.check_tree(rows)
        chat_rows.check_answers(rows)
        query = Query.same("SELECT count(*) FROM boots WHERE agent = ?")
        assert (await host.store.fetch(query, address))[0][0] == 0
        query = Query.same("SELECT state FROM incidents WHERE agent = ?")
        [entry] = rows.entries
        kept = [("exhausted",)] if entry.outcome == "error" else []
        assert [tuple(row) for row in await host.store.fetch(query, address)] == kept
        answers = [row for row in rows.path if row.role == "assistant"]
        return entry.outcome, entry.error, "".join(row.text for row in answers)


def test_a_progressing_turn_survives_a_kill_every_2_seconds(
    sqlite_url: str, killable_worker: Callable[..., Worker]
) -> None:
    """0.4 seconds after each request, of an answer that takes 1.4."""
    worker = killable_worker(
        agents=[Narrator], drive=drive, store=sqlite_url, arguments=["Narrator"]
    )
    lines, kills = run(worker, most=100)
    assert kills >= 3, "it was killed in the middle, not before"
    check_seen(lines)
    assert lines.count("asked") <= kills + 1, "a death costs one request"
    assert asyncio.run(stored(Narrator, sqlite_url)) == ("completed", None, ANSWER)


@pytest.mark.parametrize("agent", [Silent, Stalling])
def test_a_stuck_turn_is_sealed_in_bounded_model_calls(
    agent: type[Think], sqlite_url: str, killable_worker: Callable[..., Worker]
) -> None:
    worker = killable_worker(
        agents=[agent], drive=drive, store=sqlite_url, arguments=[agent.__name__]
    )
    lines, kills = run(worker, most=12)
    check_seen(lines)
    assert asyncio.run(stored(agent, sqlite_url)) == ("error", GIVEN_UP, "")
    expected = kills if agent is Silent else 3
    assert lines.count("asked") == expected
