"""Answers whose rest is spliced, killed at every commit and while they are spliced: each word once."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from chat_rows import check_all_ended, check_answers, check_request, check_tree, said, stored

from outlast import Host, Think
from outlast.chat.model.beginnings import asks_to_continue
from outlast.chat.seam.instruct import is_begin_again, tail_of
from outlast.testing import Outcome, ScriptedModel, Step
from sweeps import crash_sweep

Mode = Literal["commits", "groups", "twice"]

TEXT = (
    "Fishing alone, the old man had gone eighty-four days now without taking a fish.\n\n"
    "- Monday: nothing\n- Tuesday: nothing\n\nSo he went **far** out."
)
PIECES = [f"{word} " for word in TEXT.split(" ")]
PIECES[-1] = PIECES[-1].rstrip()


def pieces_of(text: str) -> Step:
    return Step.text(chunks=[text[n : n + 9] for n in range(0, len(text), 9)], delay=0.01)


def answer(how: str, messages: Any) -> Step:
    """The whole text at first; then the rest of it, with what such a model adds."""
    prompts = [getattr(part, "content", None) for part in messages[-1].parts]
    is_asked = any(map(asks_to_continue, prompts))
    if messages[-1].kind == "request" and (not is_asked or any(map(is_begin_again, prompts))):
        return Step.text(chunks=PIECES, delay=0.01)
    [*_, last] = [message for message in messages if message.kind == "response"]
    text = last.text or ""
    rest = TEXT[len(text) :]
    match how:
        case "repeats the tail":
            return pieces_of(tail_of(text) + rest)
        case "repeats everything":
            return pieces_of(f"\n{TEXT}")
        case "greets":
            return pieces_of(f"Sure, here is the rest:\n\n{tail_of(text)}{rest}")
    return pieces_of(TEXT[len(text.rstrip()) :])


def talker(how: str) -> type[Any]:
    model = ScriptedModel.answering(lambda messages: answer(how, messages))
    way = "prefill" if how == "continues its own words" else "instruct"
    return type("Talker", (Think,), {"model": model, "continuation": way})


@pytest.fixture
def store(engine: str, request: pytest.FixtureRequest) -> str | None:
    return str(request.getfixturevalue("postgres")) if engine == "postgresql" else None


@pytest.mark.parametrize(
    ("how", "engine", "mode"),
    [
        ("continues its own words", "sqlite", "commits"),
        ("continues its own words", "postgresql", "twice"),
        ("repeats the tail", "sqlite", "commits"),
        ("repeats the tail", "sqlite", "twice"),
        ("repeats the tail", "postgresql", "commits"),
        ("repeats everything", "sqlite", "twice"),
        ("greets", "sqlite", "twice"),
        ("greets", "postgresql", "groups"),
    ],
)
async def test_every_word_is_there_once(
    how: str, engine: str, mode: Mode, store: str | None
) -> None:
    Talker = talker(how)

    async def work(host: Host) -> None:
        user = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Tell me"}]}
        await host.get(Talker, "a").submit_messages(user, idempotency_key="tell")
        await host.until_settled()

    async def check(outcome: Outcome) -> None:
        await outcome.host.until_settled()
        rows = await stored(outcome.host, "Talker/a")
        check_all_ended(rows)
        check_tree(rows)
        check_answers(rows)
        for request in Talker.model.requests:
            if request.messages[-1].kind == "request":
                check_request(request.messages)
        assert [entry.outcome for entry in rows.entries] == ["completed"]
        assert rows.path[-1].text == TEXT
        [chunks] = rows.streams.values()
        if not any("reset-step" in chunk for chunk in chunks):
            assert said(chunks, "text") == TEXT

    sample = None if mode == "commits" and engine == "sqlite" else 16
    report = await crash_sweep(
        agents=[Talker],
        drive=work,
        check=check,
        reset=Talker.model.requests.clear,
        outside=[Talker.model.requests],
        mode=mode,
        store=store,
        sample=sample,
    )
    assert report.commits >= 15
    assert report.deaths >= (sample or report.commits)
