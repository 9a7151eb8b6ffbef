"""A conversation that `on_recovery_boot` changes, killed at every commit: decided whole, or not at all."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from chat_rows import check_all_ended, check_request, check_tree, prompts_of, stored
from pydantic_ai.messages import ModelMessage

from outlast import Host, RecoveryBootEvent, RecoveryBootResult, Think
from outlast.testing import Outcome, ScriptedModel, Step
from sweeps import crash_sweep

AGENT = "Dropper/d"
ESSAY = "An essay of a few words."


def answer(messages: list[ModelMessage]) -> Step:
    prompt = prompts_of(messages)[-1]
    return Step.text(ESSAY, delay=0.01) if prompt == "essay" else Step.text("15.", delay=0.01)


model = ScriptedModel.answering(answer)


class Dropper(Think):
    model = model

    def on_recovery_boot(self, event: RecoveryBootEvent) -> RecoveryBootResult:
        first, *others = event.in_flight_users
        wanted = [*others, "again"] if first.text == "essay" else event.in_flight_users
        return RecoveryBootResult(chain=event.settled_messages, recovered_turns=wanted)


def user(text: str) -> dict[str, Any]:
    return {"id": f"u-{text}", "role": "user", "parts": [{"type": "text", "text": text}]}


async def talk(host: Host) -> None:
    agent = host.get(Dropper, "d")
    await agent.submit_messages(user("essay"), idempotency_key="essay")
    await agent.submit_messages(user("sum"), idempotency_key="sum")
    await host.until_settled()


async def check(outcome: Outcome) -> None:
    rows = await stored(outcome.host, AGENT)
    check_all_ended(rows)
    check_tree(rows)
    for request in model.requests:
        check_request(request.messages)
    for row in rows.path:
        if row.role == "assistant":
            assert row.text in (ESSAY, "15."), "no answer is glued to another one"
    ends = {entry.key: entry.outcome for entry in rows.entries}
    assert ends["essay"] in ("completed", "skipped")
    added = [entry for entry in rows.entries if entry.origin == "recovery"]
    if ends["essay"] == "skipped":
        assert sum(entry.kind == "message" for entry in added) == 1, "what is asked anew, once"
    else:
        assert not any(entry.kind == "message" for entry in added)
    assert [row.text for row in rows.path if row.role == "user"].count("sum") == 1


def forget() -> None:
    model.requests.clear()


@pytest.mark.parametrize(
    ("mode", "engine", "sample"),
    [("commits", "sqlite", None), ("twice", "sqlite", 20), ("commits", "postgresql", 6)],
)
async def test_a_partial_answer_that_is_dropped(
    mode: Literal["commits", "twice"],
    engine: str,
    sample: int | None,
    request: pytest.FixtureRequest,
) -> None:
    store = str(request.getfixturevalue("postgres")) if engine == "postgresql" else None
    report = await crash_sweep(
        agents=[Dropper], drive=talk, check=check, reset=forget, outside=[model.requests],
        mode=mode, store=store, sample=sample,
    )  # fmt: skip
    assert report.deaths >= (sample or 2 * report.commits)
