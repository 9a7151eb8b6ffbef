"""A request that repeats a stored message that is not in memory: its claim is refused, and made again."""

from __future__ import annotations

from typing import Any

import pytest
from conversation import talker

from outlast import Host
from outlast.store.operations import Query
from outlast.testing import Outcome, ScriptedModel, Step
from sweeps import crash_sweep

ANSWERS = Query.same("SELECT count(*) FROM messages WHERE role = 'assistant'")
STORED = Query.same("SELECT id, body FROM messages WHERE role = 'user' ORDER BY number")


def user(id: str, text: str) -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_it_is_stored_once_wherever_the_process_dies(
    engine: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.chat.transcript.transcript.WINDOW_BYTES", 1)
    Talker = talker(ScriptedModel(Step.text("Hello!"), repeat=True), chat_recovery=True)

    async def drive(host: Host) -> None:
        agent = host.get(Talker, "a")
        for number in range(3):
            message = user(f"m{number}", "first")
            await agent.submit_messages([message], idempotency_key=f"k{number}")
            await host.until_settled()  # what comes before an answer is over would overtake it
        again = [user("m0", "changed"), user("m9", "new")]
        await agent.submit_messages(again, idempotency_key="again")
        await host.until_settled()

    async def check(outcome: Outcome) -> None:
        stored = await outcome.host.store.fetch(STORED)
        assert [id for id, _ in stored] == ["m0", "m1", "m2", "m9"]
        assert "changed" not in stored[0][1]
        [(answers,)] = await outcome.host.store.fetch(ANSWERS)
        assert answers == 4

    store = None if engine == "sqlite" else request.getfixturevalue("postgres")
    sample = None if engine == "sqlite" else 8
    report = await crash_sweep(
        agents=[Talker], drive=drive, check=check, store=store, sample=sample
    )
    assert report.deaths > 0
