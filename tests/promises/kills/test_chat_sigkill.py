"""SIGKILL for real, in the middle of answers: whatever a reader outside was shown is there afterwards."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable

import pytest

from outlast import Host, Think
from outlast.testing import ScriptedModel, Step, Worker

pytestmark = pytest.mark.usefixtures("forks")

AGENTS = 3
ANSWER = "This is an answer of a good many words, said one after another, and each of them counts. "


class Speaker(Think):
    chat_recovery = False
    model = ScriptedModel(
        Step.reasoning("Let me think about it.", delay=0.01) + Step.text(3 * ANSWER, delay=0.01)
    )


class Pipe:
    """Tells the process outside each chunk as it comes. A write to a pipe outlasts its writer."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._count = 0
        self._request = ""

    def on_start(self, event: dict[str, str]) -> None:
        self._request = event["request_id"]
        say(f"accepted {self._agent} {self._request}")

    def on_event(self, chunk: str) -> None:
        say(f"seen {self._agent} {self._request} {self._count} {chunk}")
        self._count += 1


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def drive(host: Host) -> None:
    """Two messages to each agent: one that is answered, and one that waits."""

    async def talk(name: str) -> None:
        agent = host.get(Speaker, name)
        waiting = await agent.submit_messages("And later?")
        say(f"accepted {name} {waiting.id}")
        await agent.chat("Well?", Pipe(name))

    await asyncio.gather(*(talk(f"s{number}") for number in range(AGENTS)))


@pytest.mark.invariant("C1")
@pytest.mark.parametrize(("engine", "kills"), [("sqlite_url", 3), ("postgres_url", 1)])
def test_random_kills_in_the_middle_of_answers(
    engine: str,
    kills: int,
    request: pytest.FixtureRequest,
    killable_worker: Callable[..., Worker],
) -> None:
    url = str(request.getfixturevalue(engine))
    chance = random.Random(11)
    worker = killable_worker(agents=[Speaker], drive=drive, store=url)
    output = ""
    for _ in range(kills):
        ended = worker.run(kill_after=chance.uniform(0.15, 0.6))
        assert ended.killed
        output += whole_lines(ended.output)
    ended = worker.run(kill_at=f"after commit {chance.randint(40, 60)}")  # however fast it is
    assert ended.killed
    output += whole_lines(ended.output)
    ended = worker.run()
    assert not ended.killed
    output += whole_lines(ended.output)
    counts = asyncio.run(check(url, output))
    assert counts["seen"] > 200, "it was killed in the middle, not before"
    assert counts["interrupted"] >= 1


def whole_lines(output: str) -> str:
    """Without the line in the middle of which it died."""
    return output[: output.rfind("\n") + 1]


async def check(url: str, output: str) -> dict[str, int]:
    from chat_rows import Seen, check_all_ended, check_answers, check_seen, check_tree, stored

    seen = {f"Speaker/s{number}": Seen() for number in range(AGENTS)}
    accepted: dict[str, list[str]] = {agent: [] for agent in seen}
    for line in output.splitlines():
        if line.startswith("accepted "):
            _, agent, id = line.split(" ")
            accepted[f"Speaker/{agent}"].append(id)
        elif line.startswith("seen "):
            _, agent, id, seq, chunk = line.split(" ", 4)
            seen[f"Speaker/{agent}"].saw(id, int(seq), chunk)
    outcomes: list[str | None] = []
    async with Host([Speaker], url) as host:
        await host.until_settled()
        for agent in seen:
            rows = await stored(host, agent)
            check_all_ended(rows)
            check_tree(rows)
            check_answers(rows)
            check_seen(rows, seen[agent])
            assert set(accepted[agent]) <= {entry.id for entry in rows.entries}
            for row in rows.messages.values():
                if row.role == "assistant":
                    assert (3 * ANSWER).startswith(row.text), "each word once, in order"
            outcomes += [entry.outcome for entry in rows.entries]
    assert set(outcomes) <= {"completed", "interrupted"}
    return {
        "seen": sum(len(chunks) for each in seen.values() for chunks in each.chunks.values()),
        "interrupted": outcomes.count("interrupted"),
    }
