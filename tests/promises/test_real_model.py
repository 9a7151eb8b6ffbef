"""Answers of a real model, killed at many places: byte for byte what they would have been.

SmolLM2-135M on this machine, served by llama.cpp, through the client of a real provider. Every answer is
made once without an interruption. Then there are twenty agents that have said its first pieces when they are
killed, and the next process continues them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conversation import rows
from interruptions import tell_nobody

from outlast import Host, Think, TurnConfig
from outlast.demo.local_model import LocalModel
from outlast.testing import ScriptedModel, Step
from support import hosting

CUTS = 20
QUESTIONS = [  # their answers are short, and long enough for so many cuts
    "What is a lemon? One sentence.",
    "Define rain in one sentence.",
    "What is paper? One sentence.",
    "What is snow? One sentence.",
    "What is a lake? One sentence.",
    "What is a ship? One sentence.",
    "What is a bee? One sentence.",
    "List two fruits.",
    "Define gold in one sentence.",
    "What is a book?",
]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalModel]:
    with LocalModel(context=1024, threads=1, batch=1) as local:
        yield local


def talker(model: Any, **members: Any) -> type[Any]:
    async def before_turn(self: Any, context: Any) -> TurnConfig:
        return TurnConfig(temperature=0.0, seed=1, max_output_tokens=120)

    given = {"model": model, "system_prompt": "You are a helpful assistant."}
    return type("Talker", (Think,), {**given, "before_turn": before_turn, **members})


async def whole(url: str, model: Any, question: str) -> list[str]:
    """The pieces of an answer that nobody interrupts."""
    Talker = talker(model)
    async with hosting(Talker, url=url) as host:
        a = host.get(Talker, "whole")
        turn = await a.save_messages(question)
        assert turn.status == "completed", turn.error
        chunks = [chunk async for _, chunk in a.resume_stream(turn.request_id)]
    pieces = [chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta"]
    assert "".join(pieces) == turn.message.text
    return pieces


@asynccontextmanager
async def killed(
    url: str, pieces: list[str], cuts: list[int], question: str
) -> AsyncIterator[dict[str, int]]:
    """Agents that were killed when they had said so many pieces."""

    stops = {f"cut{cut}": cut for cut in cuts}
    models = {
        name: ScriptedModel(Step.text(chunks=pieces[:cut]) + Step.stalls())
        for name, cut in stops.items()
    }
    Talker = talker(None, get_model=lambda self: models[self.name])
    async with hosting(Talker, url=url, life="1", shutdown_timeout=0) as host:
        tell_nobody(host)
        for name in stops:
            await host.get(Talker, name).submit_messages(question, submission_id=name)
        for name, cut in stops.items():
            await until_said(host, name, cut)
    yield stops


async def until_said(host: Host, name: str, pieces: int) -> None:
    table = f"streams WHERE agent = 'Talker/{name}'"
    async with asyncio.timeout(20):
        while True:
            said = [
                line for (body,) in await rows(host, table, "body") for line in body.split("\n")
            ]
            if sum("text-delta" in line for line in said) >= pieces:
                return
            await asyncio.sleep(0.01)


async def seams(host: Host) -> list[dict[str, Any]]:
    found = await rows(host, "decisions", "body")
    return [json.loads(body)["seam"] for (body,) in found if "seam" in body]


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_killed_answer_is_the_answer_that_is_not_killed(
    local: LocalModel, tmp_path: Path, question: str
) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    async with local.model() as model:
        pieces = await whole(f"sqlite:///{tmp_path}/whole.db", model, question)
        assert len(pieces) > CUTS
        cuts = sorted({1 + (len(pieces) - 1) * n // CUTS for n in range(CUTS)})
        assert len(cuts) == CUTS
        async with killed(url, pieces, cuts, question) as stops:
            Talker = talker(model, continuation="prefill")
            async with hosting(Talker, url=url, life="2") as host:
                await host.until_settled()
                said = {name: await last_text(host, Talker, name) for name in stops}
                ways = {seam["way"] for seam in await seams(host)}
    assert said == dict.fromkeys(stops, "".join(pieces))
    assert ways == {"prefill"}


async def last_text(host: Host, Talker: type[Any], name: str) -> str:
    message = (await host.get(Talker, name).get_messages())[-1]
    assert sum(part["type"] == "text" for part in message.parts) == 1
    return str(message.text)
