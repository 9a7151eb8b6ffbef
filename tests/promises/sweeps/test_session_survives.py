"""Memory, summaries, the frozen prompt and the index, killed at every commit: nothing lost or twice."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from chat_rows import check_all_ended, check_answers, check_request, check_tree, stored

from outlast import CompactionContext, Host, Message, Session, Think
from outlast.session.compaction.overlay import HEADING
from outlast.store.operations import Query
from outlast.testing import Outcome, ScriptedModel, Step
from sweeps import crash_sweep

Mode = Literal["commits", "groups", "twice"]

NAMES = ("a", "b")
TURNS = 5
ANSWER = "An answer that is of some length, so that the conversation is soon a long one."


def question(name: str, n: int) -> str:
    return f"Question number {n} of {name}, which is also of some length, as is its answer."


def answer(messages: Any) -> Step:
    """Note the first question in memory; answer the others."""
    last = [part for part in messages[-1].parts if part.part_kind == "user-prompt"]
    text = str(last[0].content) if last else ""
    if text.startswith("Question number 0"):
        return Step.call(
            "set_context", {"label": "memory", "content": text, "action": "append"}, id="c"
        )
    return Step.text(ANSWER)


def covered(messages: list[Message], context: CompactionContext) -> str:
    """A summary that says what it stands for: the numbers of the questions."""
    numbers = [each.text.split()[2] for each in messages if each.text.startswith("Question")]
    return " ".join(filter(None, [context.previous, *numbers]))


class Keeper(Think):
    model = ScriptedModel.answering(answer)

    def configure_session(self, session: Session) -> Session:
        return (
            session.with_context("memory", max_tokens=500)
            .with_cached_prompt()
            .with_search()
            .on_compaction(covered)
            .compact_after(120, token_counter=lambda messages: len(messages[0].text) // 4)
        )

    async def look(self) -> tuple[str, list[str], list[str], str]:
        block = await self.session.get_context_block("memory")
        assert block is not None
        hits = await self.session.search("length question", 100)
        return (
            block.content,
            [message.text for message in self.session.get_history()],
            [hit.message_id for hit in hits],
            await self.session.system_prompt(),
        )


@pytest.fixture
def store(engine: str, request: pytest.FixtureRequest) -> str | None:
    return str(request.getfixturevalue("postgres")) if engine == "postgresql" else None


async def drive(host: Host) -> None:
    for n in range(TURNS):
        for name in NAMES:
            id = f"{name}{n}"
            user = {
                "id": id,
                "role": "user",
                "parts": [{"type": "text", "text": question(name, n)}],
            }
            await host.get(Keeper, name).submit_messages(user, idempotency_key=id)
    await host.until_settled()


async def check(outcome: Outcome) -> None:
    host = outcome.host
    await host.until_settled()
    for request in Keeper.model.requests:
        check_request(request.messages)
    for name in NAMES:
        rows = await stored(host, f"Keeper/{name}")
        check_all_ended(rows)
        check_tree(rows)
        check_answers(rows)
        asked = len(rows.entries)
        memory, history, hits, prompt = await host.get(Keeper, name).look()
        if not asked:
            continue
        assert memory in ("", question(name, 0)), "written once"
        assert set(hits) == {id for id, row in rows.messages.items() if row.role == "user"}
        _check_history(history, [row.text for row in rows.path])
        (fact,) = await host.store.fetch(
            Query.same("SELECT value FROM facts WHERE agent = ? AND name = 'session:prompt'"),
            f"Keeper/{name}",
        )
        assert prompt.splitlines()[1] in fact[0], "the prompt is stored"


def _check_history(shown: list[str], path: list[str]) -> None:
    """The summary, and behind it exactly what it does not cover."""
    if not shown or not shown[0].startswith(HEADING):
        assert shown == path
        return
    covers = shown[0].removeprefix(HEADING).split()
    assert covers == [str(n) for n in range(len(covers))], "in order, once each"
    assert shown[1:] == path[2 * len(covers) :]


@pytest.mark.parametrize(
    ("engine", "mode"),
    [
        ("sqlite", "commits"),
        ("sqlite", "twice"),
        ("postgresql", "commits"),
        ("postgresql", "groups"),
    ],
)
async def test_a_session_survives(engine: str, mode: Mode, store: str | None) -> None:
    report = await crash_sweep(
        agents=[Keeper],
        drive=drive,
        check=check,
        reset=Keeper.model.requests.clear,
        outside=[Keeper.model.requests],
        mode=mode,
        store=store,
        sample=None if (engine, mode) == ("sqlite", "commits") else 16,
    )
    assert report.commits >= 15  # however many turns share a commit
