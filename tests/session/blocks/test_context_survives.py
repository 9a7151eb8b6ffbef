"""The model writes to context blocks and is killed at every commit: each write is there once."""

from __future__ import annotations

from typing import Any

import pytest
from block_agents import RECEIPTS, ROWS, Rememberer, of

from outlast.core import json
from outlast.session.block import BlockSettings
from outlast.session.blocks import stored
from outlast.session.blocks.stored import BlockRows, Entry, StoredDocuments
from outlast.session.blocks.tools import ContextTools
from outlast.testing import ScriptedModel, Step
from outlast.testing.sweep import SweepMode
from sweeps import crash_sweep

FILE: dict[str, str] = {}


class Outside:
    """A writable block that is not in the store: whatever was written survives every death."""

    def get(self) -> str | None:
        return FILE.get("content")

    def set(self, content: str) -> None:
        FILE["content"] = content


def call(id: str, tool: str, **arguments: str) -> Step:
    return Step.call(tool, arguments, id=id)  # the same in every run


def append(id: str, label: str, content: str) -> Step:
    return call(id, "set_context", label=label, content=content, action="append")


class Learner(Rememberer):
    model = ScriptedModel(
        append("1", "memory", "Owls fly."),
        append("2", "memory", "Cows do not."),
        call("3", "set_context", label="docs", content="Bow.", title="Greet"),
        append("4", "outside", "Written down."),
        call("5", "unload_context", label="docs", key="greet"),
        "Learned.",
        by="turn",
    )
    blocks_of = (
        BlockSettings(label="memory", max_tokens=100),
        of("docs", StoredDocuments()),
        of("outside", Outside()),
    )


async def drive(host: Any) -> None:
    await host.get(Learner, "l").submit_messages("Learn", submission_id="learn")
    await host.until_settled()


async def check(outcome: Any) -> None:
    host = outcome.host
    assert (await host.get(Learner, "l").inspect_submission("learn")).status == "completed"
    assert await host.store.fetch(ROWS) == [
        ("docs", "greet", "Bow.", None),
        ("memory", "", "Owls fly.\nCows do not.", None),
    ]
    assert FILE == {"content": "Written down."}
    answer = (await host.get(Learner, "l").get_messages())[-1]
    outputs = [part["output"] for part in answer.parts if part["type"].startswith("tool-")]
    assert outputs == [
        "Written to memory. Usage: 3% (3 of 100 tokens).",
        "Written to memory. Usage: 7% (7 of 100 tokens).",
        'Indexed "greet" in docs.',
        "Written to outside (4 tokens).",
        'Unloaded "greet" of docs.',
    ]
    values = {
        json.decode(value)
        for scope, value in await host.store.fetch(RECEIPTS)
        if scope == "session:context"
    }
    assert values == set(outputs), "the model was told what the receipts say"


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
@pytest.mark.parametrize("mode", ["commits", "thrice"])
async def test_each_write_is_there_once(
    engine: str, mode: SweepMode, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue("postgres") if engine == "postgresql" else None
    report = await crash_sweep(
        agents=[Learner],
        drive=drive,
        check=check,
        outside=[FILE],
        reset=FILE.clear,
        store=store,
        mode=mode,
    )
    assert report.deaths >= 2 * report.commits
    assert report.commits >= 15


# --- the sweep can fail --------------------------------------------------------------------------


async def twice() -> None:
    with pytest.raises(AssertionError, match="Owls fly|Written down"):
        await crash_sweep(
            agents=[Learner], drive=drive, check=check, outside=[FILE], reset=FILE.clear
        )


async def test_a_row_that_is_not_in_the_commit_of_its_receipt_is_written_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def append_alone(rows: Any, label: str, key: str, content: str) -> None:
        await rows._commits.commit([(stored._APPEND, rows._row(label, key, Entry(content)))])

    monkeypatch.setattr(BlockRows, "append", append_alone)
    await twice()


async def test_outside_the_store_an_append_without_a_plan_is_done_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_plan(*_: Any) -> None:
        return None

    monkeypatch.setattr(ContextTools, "_planned", no_plan)
    await twice()
