"""The tab of a battery, over HTTP: which there are, its tables, its rows, and what goes wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import httpx2 as httpx
import pytest
from tabs import LONG, serving

from outlast import Agent, App
from outlast.agent.battery import Battery
from outlast.agent.part import Part
from vector_notes import HasNotes

TOKEN = "the-token-of-these-tests"


class SilentPart(Part): ...


class HasSilent(Agent):
    battery = Battery(name="silent", part=SilentPart)


class BrokenPart(Part): ...


class HasBroken(Agent):
    battery = Battery(name="broken", part=BrokenPart, views="nowhere_at_all:VIEWS")


class Child(HasNotes): ...


class Keeper(HasNotes, HasSilent, HasBroken):
    sub_agents: ClassVar[Any] = [Child]

    async def keep_below(self, text: str) -> str:
        child = await self.sub_agent(Child, "c")
        return (await child.keep_note(text)).id


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_TOKEN", TOKEN)


async def get(client: httpx.AsyncClient, what: str, status: int = 200, **query: Any) -> Any:
    answer = await client.get(f"/_outlast/inspect/{what}", params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_the_views_of_an_agent_s_batteries_are_shown(store_url: str) -> None:
    app = App([Keeper], store_url, inspector=True)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with serving(app) as served:
        note = await app.host.get(Keeper, "k").keep_note("Owls fly at night.")
        below = await app.host.get(Keeper, "k").keep_below("Mice do not.")
        async with httpx.AsyncClient(base_url=served.http, timeout=LONG, headers=headers) as client:
            agent = await get(client, "agent", agent="Keeper/k")
            assert agent["batteries"] == ["broken", "notes"], "those that have something to show"
            (shown,) = await get(client, "battery", agent="Keeper/k", name="notes")
            assert [row[:2] for row in shown["rows"]] == [[note.id, "Owls fly at night."]]
            address = "Keeper/k/Child/c"
            (shown,) = await get(client, "battery", agent=address, name="notes", live=1)
            assert shown["rows"][0][0] == below
            given = {"agent": "Keeper/k", "name": "notes", "view": "Notes"}
            detail = await get(client, "battery", row=note.id, **given)
            assert detail["values"][2] == "Owls fly at night."
            assert detail["row"] == note.id
            told = await get(client, "battery", 404, row=below, **given)
            assert "has no" in told["error"], "a row of another agent is none of this one"
            (broken,) = await get(client, "battery", agent="Keeper/k", name="broken")
            assert "No module named 'nowhere_at_all'" in broken["error"]


async def test_what_is_not_there_is_said(sqlite_url: str) -> None:
    app = App([Keeper], sqlite_url, inspector=True)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with serving(app) as served:
        await app.host.get(Keeper, "k").keep_note("Owls fly at night.")
        async with httpx.AsyncClient(base_url=served.http, timeout=LONG, headers=headers) as client:
            told = await get(client, "battery", 404, agent="Keeper/k", name="tasks")
            assert told["error"] == "Keeper has no battery 'tasks'"
            told = await get(client, "battery", 404, agent="Gone/k", name="notes")
            assert told["error"] == "Gone has no battery 'notes'"
            told = await get(
                client, "battery", 404, agent="Keeper/k", name="notes", view="X", row="1"
            )
            assert "has no view 'X'; it has 'Notes'" in told["error"]
            assert (await get(client, "battery", 400, name="notes"))["error"].startswith("agent is")
        async with httpx.AsyncClient(base_url=served.http, timeout=LONG) as stranger:
            await get(stranger, "battery", 401, agent="Keeper/k", name="notes")
