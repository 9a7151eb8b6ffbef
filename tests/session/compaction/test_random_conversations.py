"""Random conversations with branches, summaries, edits, clears and restarts: what the model is shown.

Every summary names the messages that it stands for, so that nothing can be lost or shown twice unnoticed.
"""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest
from chat_rows import check_request

from outlast import CompactionContext, Message, Session, Think, tool
from outlast.session.compaction.overlay import HEADING
from outlast.testing import ScriptedModel, Step
from support import World

pytestmark = pytest.mark.virtual_time

FILLER = "in words that are of some length " * 3
SEEDS = range(5)


def code(text: str) -> str:
    """Return the first word of a message, which is its own."""
    return text.split()[0]


def talkative(numbers: Any, rng: random.Random, threshold: int | None) -> type[Any]:
    def answered(messages: Any) -> Step:
        check_request(messages)
        has_result = any(part.part_kind == "tool-return" for part in messages[-1].parts)
        said = f"A{next(numbers)} {FILLER}"
        if has_result or rng.random() < 0.6:
            return Step.text(said)
        return Step.text(said) + Step.call("look", {})

    def summarised(messages: list[Message], context: CompactionContext) -> str:
        codes = [code(message.text) for message in messages]
        return " ".join(filter(None, [context.previous, *codes]))

    class Talkative(Think):
        model = ScriptedModel.answering(answered)

        @tool(effect="read")
        def look(self) -> str:
            """Look at something."""
            return FILLER

        def configure_session(self, session: Session) -> Session:
            session = session.on_compaction(summarised)
            return session if threshold is None else session.compact_after(threshold)

        async def history(self) -> list[str]:
            return [message.text for message in self.session.get_history()]

        async def compact(self) -> bool:
            return await self.session.compact()

    return Talkative


async def change(agent: Any, rng: random.Random, numbers: Any) -> None:
    """Do something to a conversation."""
    messages = await agent.get_messages()
    action = rng.choices(
        ["ask", "compact", "regenerate", "branch", "edit", "clear"], [8, 4, 2, 2, 2, 0.4]
    )[0]
    answers = [each for each in messages if each.role == "assistant"]
    if action == "compact":
        await agent.compact()
    elif action == "clear":
        await agent.clear_messages()
    elif action == "regenerate" and answers:
        await agent.regenerate(rng.choice(answers).id)
    elif action == "branch" and messages:
        siblings = await agent.get_branches(rng.choice(messages).id)
        await agent.select_branch(rng.choice(siblings).id)
    elif action == "edit" and messages:
        last = messages[-1]
        parts = [{"type": "text", "text": f"E{next(numbers)} {FILLER}"}]
        await agent.update_message({**last.raw, "parts": parts})
    else:
        turn = await agent.save_messages(f"Q{next(numbers)} {FILLER}")
        assert turn.status == "completed", turn.error


async def check(agent: Any) -> bool:
    """The summary and what is shown behind it are the conversation. Returns whether there is a summary."""
    shown = await agent.history()
    path = [code(message.text) for message in await agent.get_messages()]
    if not shown or not shown[0].startswith(HEADING):
        assert [code(text) for text in shown] == path
        return False
    covered = shown[0].removeprefix(HEADING).split()
    assert covered + [code(text) for text in shown[1:]] == path
    return True


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_message_is_lost_or_shown_twice(sqlite_world: World, seed: int) -> None:
    await _run(sqlite_world, seed)


@pytest.mark.parametrize("seed", [100])
async def test_no_message_is_lost_or_shown_twice_on_either_engine(world: World, seed: int) -> None:
    await _run(world, seed)


async def _run(world: World, seed: int) -> None:
    rng, numbers = random.Random(seed), count()
    Talkative = talkative(numbers, rng, rng.choice([None, 300]))
    host = await world.host(Talkative)
    summaries = 0
    for _ in range(40):
        agent = host.get(Talkative, "a")
        await change(agent, rng, numbers)
        await host.until_settled()
        summaries += await check(agent)
        if rng.random() < 0.1:
            host = await world.next_life()
            await check(host.get(Talkative, "a"))
    assert summaries, "there was something to check"
