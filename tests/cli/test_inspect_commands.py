"""`outlast inspect` and `outlast explain`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import beside, outlast

from outlast import Host, Think
from outlast.testing import ScriptedModel, Step
from support import hosting


class Talker(Think):
    model = ScriptedModel("Hello there!", repeat=True)


class SupportAgent(Talker):
    pass


class Silent(Think):
    model = ScriptedModel(Step.text("Well ") + Step.stalls(), by="request", repeat=True)


@pytest.fixture
def talked(sqlite_url: str) -> str:
    """A store with two agents that have answered."""

    async def main() -> None:
        async with Host([Talker, SupportAgent], sqlite_url) as host:
            await host.get(Talker, "alice").submit_messages("Hi, [bold]you", submission_id="hi-1")
            await host.get(SupportAgent, "bob").submit_messages("Help", submission_id="help-1")
            await host.until_settled()

    asyncio.run(main())
    return sqlite_url


def test_agents_are_listed_for_people_and_for_programs(talked: str) -> None:
    shown = outlast("inspect", "--store", talked)
    assert shown.code == 0
    assert "SupportAgent" in shown.out
    assert "alice" in shown.out
    agents = outlast("inspect", "agents", "--store", talked, "--json").json
    assert [(each["address"], each["state"]) for each in agents] == [
        ("SupportAgent/bob", "idle"),
        ("Talker/alice", "idle"),
    ]
    assert outlast("inspect", "--json", "--store", talked).json == agents
    before = outlast("inspect", "--json", "--store", talked, "agents")
    assert before.json == agents, "options may stand before the command"
    assert outlast("inspect", "agents", "--json", OUTLAST_STORE=talked).json == agents


@pytest.mark.parametrize("spelt", ["SupportAgent", "support-agent", "supportagent"])
def test_an_agent_is_found_however_its_class_is_spelt(talked: str, spelt: str) -> None:
    found = outlast("inspect", "agent", spelt, "bob", "--store", talked, "--json").json
    assert found["agent"]["address"] == "SupportAgent/bob"
    assert [turn["id"] for turn in found["turns"]] == ["help-1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["agent", "Suport", "bob"], "Did you mean 'SupportAgent'?"),
        (["agent", "Unicorn", "bob"], "Known names: SupportAgent, Talker"),
        (["agent", "Talker", "alise"], "Did you mean 'alice'?"),
        (["agent", "Talker"], "a name is required; known names of Talker: alice"),
        (["agent", "Talker/alise"], "Did you mean 'alice'?"),
        (["turns", "Talkr"], "Did you mean 'Talker'?"),
        (["chunks", "nothing"], "no turn 'nothing' in this store"),
    ],
)
def test_a_name_that_is_wrong_is_met_with_the_right_one(
    talked: str, arguments: list[str], told: str
) -> None:
    failed = outlast("inspect", *arguments, "--store", talked)
    assert failed.code == 1
    assert told in failed.err
    assert failed.err.count("\n") == 1, "one line, no traceback"


def test_every_view_is_printed_in_both_ways(talked: str) -> None:
    for view in ("turns", "submissions", "incidents", "sizes"):
        assert outlast("inspect", view, "--store", talked).code == 0
        assert isinstance(outlast("inspect", view, "--store", talked, "--json").json, list)
    for view in ("fibers", "schedules", "ledger", "messages", "turns", "sizes"):
        one = ["inspect", view, "Talker", "alice", "--store", talked]
        assert outlast(*one).code == 0
        assert isinstance(outlast(*one, "--json").json, list)
    assert "[bold]you" in outlast("inspect", "messages", "Talker/alice", "--store", talked).out
    chunks = outlast("inspect", "chunks", "hi-1", "--store", talked, "--json").json
    assert chunks[0]["chunk"]["type"] == "start"
    assert '{"type":"start"' in outlast("inspect", "chunks", "hi-1", "--store", talked).out


def test_a_turn_is_explained_in_words(talked: str) -> None:
    shown = outlast("explain", "hi", "--store", talked).out
    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines[0] == "hi-1 of Talker/alice"
    told = [line.split("  ")[-1].partition(" ")[2] if "  " in line else line for line in lines]
    assert any("Accepted through submit_messages(): “Hi, [bold]you”" in line for line in told)
    assert any("It says “Hello there!” (12 characters)." in line for line in told)
    assert "Completed after" in lines[-1]
    moments = outlast("explain", "hi", "--store", talked, "--json").json["moments"]
    assert [moment["kind"] for moment in moments][-1] == "settled"


def test_a_store_that_is_not_there_is_said_and_not_made(tmp_path: Path) -> None:
    failed = outlast("inspect", "--store", f"sqlite:///{tmp_path}/none.db")
    assert failed.code == 1
    assert "no store at" in failed.err
    assert outlast("inspect", "--store", "mysql://x/y").err.startswith(
        "outlast: 'mysql://x/y' is not"
    )
    assert os.listdir(tmp_path) == []


async def test_looking_works_beside_a_host_and_sees_that_it_works(sqlite_url: str) -> None:
    async with hosting(Silent, url=sqlite_url, shutdown_timeout=0) as host:
        await host.get(Silent, "s").submit_messages("Hm?", submission_id="hm")
        while True:
            found = (await beside("explain", "hm", "--store", sqlite_url, "--json")).json
            if found["moments"][-1]["kind"] == "running":
                break
        assert found["moments"][-1]["what"] == "It is running."
    found = (await beside("explain", "hm", "--store", sqlite_url, "--json")).json
    assert found["moments"][-1]["kind"] == "left", "nobody has the lock any more"


def test_help_loads_nothing_heavy() -> None:
    """It is to be there within 300 ms; what takes longer is loaded by the command that needs it."""
    code = (
        "import sys, outlast.cli.main;"
        "heavy = ['asyncio', 'pydantic', 'pydantic_ai', 'starlette', 'uvicorn', 'sqlite3',"
        " 'outlast.host.life.host', 'outlast.agent.agent'];"
        "print([name for name in heavy if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
