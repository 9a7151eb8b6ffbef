"""The sample battery, `examples/vector_notes`: tools, prompt, frames, HTTP, and its own methods."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tabs import LONG, served

from outlast import App, Host, Think
from outlast.host.address import Address
from outlast.inspect import views
from outlast.store.operations import Query
from outlast.testing import ScriptedModel, Step
from support import hosting
from vector_notes import HasNotes
from vector_notes.vectors import SIZE, likeness, packed, unpacked, vector_of

ROWS = Query.same("SELECT agent, text, turn FROM notes_kept ORDER BY at, id")


class Keeper(HasNotes, Think):
    model = ScriptedModel("Hello.", repeat=True)
    system_prompt = "You are a keeper."


def asking(*steps: Any) -> type[Keeper]:
    """The class, with a model that says this."""
    return type("Keeper", (Keeper,), {"model": ScriptedModel(*steps)})


async def output_of(host: Host, keeper: type[Keeper]) -> Any:
    turn = await host.get(keeper, "k").save_messages("Go")
    assert turn.message is not None
    return [part["output"] for part in turn.message.parts if part["type"].startswith("tool-")]


# --- notes ---------------------------------------------------------------------------------------


async def test_notes_are_kept_found_by_what_they_mean_and_forgotten(store_url: str) -> None:
    async with hosting(Keeper, url=store_url) as host:
        keeper = host.get(Keeper, "k")
        for text in ("Owls fly at night.", "The meeting is on Thursday.", "Buy milk."):
            await keeper.keep_note(text)
        await host.get(Keeper, "other").keep_note("Owls are birds.")
    async with hosting(Keeper, url=store_url, life="2") as host:
        keeper = host.get(Keeper, "k")
        found = await keeper.find_notes("when do owls fly?")
        assert [note.text for note in found] == ["Owls fly at night."]
        assert await keeper.find_notes("...") == []
        assert await keeper.forget_note(found[0].id)
        assert not await keeper.forget_note(found[0].id)
        assert await keeper.find_notes("when do owls fly?") == []


async def test_with_a_key_a_note_is_kept_once(store_url: str) -> None:
    async with hosting(Keeper, url=store_url) as host:
        keeper = host.get(Keeper, "k")
        first = await keeper.keep_note("Buy milk.", key="milk")
        assert await keeper.keep_note("Buy milk!", key="milk") == first
        assert await keeper.keep_note("Buy milk.") != first
        assert len(await host.store.fetch(ROWS)) == 2


async def test_they_go_with_their_agent(store_url: str) -> None:
    async with hosting(Keeper, url=store_url) as host:
        for name in ("k", "other"):
            await host.get(Keeper, name).keep_note("Buy milk.")
        sizes = {
            each.table: each for each in await views.sizes(host.store, Address.of("Keeper", "k"))
        }
        assert sizes["notes_kept"].rows == 1
        assert sizes["notes_kept"].bytes > 4 * SIZE
        await host.get(Keeper, "k").destroy()
        assert await host.store.fetch(ROWS) == [("Keeper/other", "Buy milk.", None)]


# --- a turn --------------------------------------------------------------------------------------


async def test_the_model_keeps_and_finds_notes(store_url: str) -> None:
    keep = Step.calls("remember_note", text="Owls fly at night.")
    find = Step.calls("find_notes", query="owls")
    keeper = asking(keep, find, "Done.")
    async with hosting(keeper, url=store_url) as host:
        kept, found = await output_of(host, keeper)
        assert kept["id"].startswith("note_")
        assert found == ["Owls fly at night."]
        ((agent, text, turn),) = await host.store.fetch(ROWS)
        assert (agent, text) == ("Keeper/k", "Owls fly at night.")
        assert (await views.find_turn(host.store, turn))[1] == turn, "it says which turn kept it"


async def test_the_prompt_says_how_many_there_are(sqlite_url: str) -> None:
    keeper = asking("Hello.")
    async with hosting(keeper, url=sqlite_url) as host:
        await host.get(keeper, "k").keep_note("Buy milk.")
    keeper = asking("Hello.")
    async with hosting(keeper, url=sqlite_url, life="2") as host:
        await host.get(keeper, "k").save_messages("Hi")
        (request,) = keeper.model.requests  # type: ignore[attr-defined]
        assert (
            "You are a keeper.\n\nYou keep notes for the user; there are 1." in request.instructions
        )
        assert sorted(request.tools) == ["find_notes", "remember_note"]


# --- clients -------------------------------------------------------------------------------------


async def test_clients_are_greeted_hear_of_notes_and_keep_some(store_url: str) -> None:
    async with served(Keeper, url=store_url) as web:
        path = "/agents/keeper/k"
        async with web.tab(path=path) as one, web.tab(path=path) as other:
            assert (await one.wait("notes"))["count"] == 0
            for _ in range(2):  # sent again, as a client does that is not sure
                await one.send("notes_keep", id="1", text="Buy milk.")
            await one.send("notes_keep", id="2", text="Buy tea.")
            for tab in (one, other):
                await tab.wait("notes", count=2)
            await one.send("notes_keep", id="3", text=7)
            assert (await one.wait("notes_refused"))["id"] == "3"
        async with web.tab(path=path) as late:
            assert (await late.wait("notes"))["count"] == 2
        texts = [text for _, text, _ in await web.app.host.store.fetch(ROWS)]
        assert texts == ["Buy milk.", "Buy tea."]


async def test_a_client_that_may_only_read_keeps_none(sqlite_url: str) -> None:
    class Guarded(Keeper):
        async def on_connect(self, connection: Any) -> None:
            connection.read_only = True

    async with served(Guarded, url=sqlite_url) as web, web.tab(path="/agents/guarded/k") as tab:
        await tab.send("notes_keep", id="1", text="Buy milk.")
        await tab.wait("notes_refused", id="1")
        assert await web.app.host.store.fetch(ROWS) == []


async def test_notes_are_there_over_http(sqlite_url: str) -> None:
    async with served(Keeper, url=sqlite_url) as web:
        note = await web.app.host.get(Keeper, "k").keep_note("Buy milk.")
        async with httpx.AsyncClient(base_url=web.http, timeout=LONG) as client:
            here = "/agents/keeper/k/notes"
            (shown,) = (await client.get(here)).json()
            assert (shown["id"], shown["text"]) == (note.id, "Buy milk.")
            assert (await client.get(f"{here}/{note.id}")).json() == shown
            assert (await client.get("/agents/keeper/other/notes")).json() == []
            for answer in (await client.get(f"{here}/none"), await client.post(here)):
                assert answer.status_code == 404


# --- vectors -------------------------------------------------------------------------------------


@given(st.text())
def test_a_text_has_a_direction_that_survives_being_stored(text: str) -> None:
    vector = vector_of(text)
    stored = packed(vector)
    assert len(stored) == 4 * SIZE
    assert unpacked(stored) == pytest.approx(vector, abs=1e-6)
    assert likeness(vector, vector) == pytest.approx(1.0) or not any(vector)


def test_like_texts_are_near() -> None:
    owls = vector_of("Owls fly at night.")
    assert likeness(owls, vector_of("an owl at night")) > likeness(owls, vector_of("buy milk"))


def test_the_app_of_the_example_can_be_served(tmp_path: Any) -> None:
    from outlast.cli.load.load import load

    app = load("examples/vector_notes/app.py", f"sqlite:///{tmp_path}/store.db")
    assert isinstance(app, App)
    assert [each.__name__ for each in app.agents] == ["Assistant"]
