"""The sample battery is killed at every commit: its tool runs again, and the note is there once."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import Think
from outlast.store.operations import Query
from outlast.testing import ScriptedModel, Step, crash_sweep
from outlast.testing.sweep import SweepMode
from vector_notes import HasNotes
from vector_notes.part import NotesPart

TEXT = "Owls fly at night."
ROWS = Query.same("SELECT text, turn FROM notes_kept")
CALLS: list[str] = []


class Keeper(HasNotes, Think):
    model = ScriptedModel(Step.calls("remember_note", text=TEXT), "Kept.", by="turn")


async def drive(host: Any) -> None:
    await host.get(Keeper, "k").submit_messages("Keep it", submission_id="keep")
    await host.until_settled()


async def check(outcome: Any) -> None:
    submission = await outcome.host.get(Keeper, "k").inspect_submission("keep")
    assert submission.status == "completed"
    assert await outcome.host.store.fetch(ROWS) == [(TEXT, "keep")]
    (found,) = await outcome.host.get(Keeper, "k").find_notes("owls at night")
    answer = (await outcome.host.get(Keeper, "k").get_messages())[-1]
    calls = [part for part in answer.parts if part["type"] == "tool-remember_note"]
    assert [call["output"] for call in calls] == [{"id": found.id}], "the model knows the one note"


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
@pytest.mark.parametrize("mode", ["commits", "thrice"])
async def test_the_note_is_there_once(
    engine: str, mode: SweepMode, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue("postgres") if engine == "postgresql" else None
    report = await crash_sweep(agents=[Keeper], drive=drive, check=check, store=store, mode=mode)
    assert report.deaths >= 2 * report.commits
    assert report.commits >= 5


async def test_the_tool_is_run_again_and_its_receipt_is_what_keeps_it_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sweep sees a tool that has no receipt: so the test above can fail."""

    async def careless(part: NotesPart, key: str, text: str, turn: str | None = None) -> Any:
        return await part.keep(text, turn)

    monkeypatch.setattr(NotesPart, "keep_once", careless)
    with pytest.raises(AssertionError):
        await crash_sweep(agents=[Keeper], drive=drive, check=check)
