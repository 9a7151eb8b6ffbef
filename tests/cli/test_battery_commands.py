"""Batteries on the command line: commands that are imported when they run, tables, and the doctor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import beside, outlast

from announced import announce
from outlast import Think
from outlast.testing import ScriptedModel
from support import hosting
from vector_notes import HasNotes

NOTES = "vector_notes.battery:BATTERY"
COMMAND = [sys.executable, "-m", "outlast.cli.main"]


class Keeper(HasNotes, Think):
    model = ScriptedModel("Hello.", repeat=True)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, in which the sample battery is announced."""
    folder = announce(tmp_path / "packages", "notes", NOTES)
    monkeypatch.syspath_prepend(str(folder))
    return folder


async def keep(url: str, *texts: str) -> list[str]:
    async with hosting(Keeper, url=url) as host:
        return [(await host.get(Keeper, "k").keep_note(text)).id for text in texts]


# --- commands ------------------------------------------------------------------------------------


def test_help_lists_batteries_and_imports_none_of_them(packages: Path) -> None:
    code = (
        "import sys, outlast.cli.main as cli\n"
        "try: cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print('loaded', *(name for name in sys.modules if name.startswith('vector_notes')))\n"
        "print('heavy', *(name for name in ('outlast.agent', 'outlast.store') if name in sys.modules))"
    )
    path = os.pathsep.join([str(packages), *filter(None, sys.path)])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "notes      Commands of a battery, from vector-notes." in ran.stdout
    assert ran.stdout.splitlines()[-2:] == ["loaded", "heavy"]


def test_without_any_help_does_not_even_look_for_them_with_importlib() -> None:
    code = (
        "import sys, outlast.cli.main as cli\n"
        "try: cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "assert 'importlib.metadata' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


async def test_a_command_of_a_battery_runs(store_url: str, packages: Path) -> None:
    first, second = await keep(store_url, "Owls fly at night.", "Mice do not.")
    listed = await beside("notes", "list", "Keeper", "k", "--store", store_url, "--json")
    assert [each["id"] for each in listed.json] == [second, first]
    shown = await beside("notes", "list", "Keeper", "k", "--store", store_url)
    assert "Owls fly at night." in shown.out
    help = outlast("notes", "--help")
    assert "List or forget notes of agents." in help.out
    assert "completion" not in help.out


async def test_it_can_call_what_the_battery_has_for_operators(
    store_url: str, packages: Path
) -> None:
    async with hosting(Keeper, url=store_url, admin=True) as host:
        note = await host.get(Keeper, "k").keep_note("Owls fly at night.")
        forget = ["notes", "forget", note.id, "Keeper", "k", "--store", store_url]
        done = await beside(*forget)
        assert (done.code, done.out) == (0, f"{note.id} of Keeper/k is forgotten.\n")
        again = await beside(*forget)
        assert (again.code, "has no note" in again.err) == (1, True)
    alone = await beside(*forget)
    assert (alone.code, "no host on this machine has this store open" in alone.err) == (1, True)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("nowhere_at_all:BATTERY", "cannot import the battery nowhere_at_all:BATTERY: ModuleNotF"),
        ("other_batteries:NO_COMMANDS", "has no commands; outlast inspect battery other AGENT"),
        ("other_batteries:NO_MODULE", "cannot import the commands of the battery 'other': Module"),
        ("other_batteries:NO_TYPER", "cannot import the commands of the battery 'other': "),
    ],
)
def test_one_that_cannot_run_says_why_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, told: str
) -> None:
    monkeypatch.syspath_prepend(str(announce(tmp_path, "other", path, "others")))
    monkeypatch.delitem(sys.modules, "other_batteries", raising=False)
    (tmp_path / "other_batteries.py").write_text(
        "from outlast.agent.battery import Battery\n"
        "from outlast.agent.part import Part\n"
        "NO_COMMANDS = Battery(name='other', part=Part)\n"
        "NO_MODULE = Battery(name='other', part=Part, commands='nowhere_at_all:app')\n"
        "NO_TYPER = Battery(name='other', part=Part, commands='other_batteries:NO_MODULE')\n"
    )
    ran = outlast("other", "list")
    assert ran.code == 1
    assert told in ran.err
    assert ran.err.count("\n") == 1


def test_a_battery_takes_no_command_of_outlast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(announce(tmp_path, "db", "nowhere_at_all:BATTERY", "others")))
    shown = outlast("db", "--help")
    assert (shown.code, "Measure, vacuum" in shown.out) == (0, True)


# --- looking -------------------------------------------------------------------------------------


async def test_its_tables_can_be_looked_at_without_a_host(store_url: str, packages: Path) -> None:
    first, second = await keep(store_url, "Owls fly at night.", "Mice " + "squeak " * 100)
    here = ["inspect", "battery", "notes", "Keeper", "k", "--store", store_url]
    shown = await beside(*here)
    for told in ("Notes", first, "Owls fly at night.", "squeak squeak", "256 B", "now"):
        assert told in shown.out
    (table,) = (await beside(*here, "--json", "--view", "Notes", "--limit", "1")).json
    assert [row[0] for row in table["rows"]] == [second]
    row = await beside(*here, "--row", second)
    assert "squeak " * 99 in " ".join(row.out.split())
    assert "Vector: 256 bytes: " in row.out
    detail = (await beside(*here, "--row", first, "--json")).json
    assert detail["values"][2] == "Owls fly at night."
    placed = await beside(*here[:2], NOTES, *here[3:], "--json")
    assert len(placed.json[0]["rows"]) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nots", "Keeper", "k"], "no battery named 'nots' is installed. Did you mean 'notes'?"),
        (["notes", "Keeper", "nobody"], "nobody"),
        (["notes", "Keeper", "k", "--view", "X"], "has no view 'X'; it has 'Notes'"),
        (["notes", "Keeper", "k", "--row", "X"], "Keeper/k has no row 'X' in 'Notes'"),
        (["nowhere_at_all:B", "Keeper", "k"], "cannot import the battery nowhere_at_all:B"),
    ],
)
async def test_what_is_not_there_is_said_in_one_line(
    sqlite_url: str, packages: Path, arguments: list[str], told: str
) -> None:
    await keep(sqlite_url, "Owls fly at night.")
    ran = await beside("inspect", "battery", *arguments, "--store", sqlite_url)
    assert ran.code == 1
    assert told in ran.err
    assert ran.err.count("\n") == 1


async def test_a_store_without_its_tables_is_told_apart_from_an_empty_one(
    sqlite_url: str, packages: Path
) -> None:
    class Plain(Think):
        model = ScriptedModel("Hello.")

    async with hosting(Plain, url=sqlite_url) as host:
        await host.get(Plain, "p").save_messages("Hi")
    ran = await beside("inspect", "battery", "notes", "Plain", "p", "--store", sqlite_url)
    assert (ran.code, "this store has no tables of the battery 'notes'" in ran.err) == (1, True)


# --- the doctor ----------------------------------------------------------------------------------

AGENTS = """
from outlast import Agent, Think
from vector_notes import HasNotes

class Child(Agent): ...

class Assistant(HasNotes, Think):
    sub_agents = [Child]
"""


@pytest.mark.usefixtures("forgotten_imports")
def test_the_doctor_tells_the_batteries_of_agents_and_the_order_of_their_parts(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path}/none.db"
    assert not [each for each in outlast("doctor", "--json").json if "agent" in each["what"]]
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "assistant.py").write_text(AGENTS)
    for target in ([], ["agents/assistant.py"]):
        told = outlast("doctor", *target, "--store", store, "--json")
        found = {each["what"]: each for each in told.json}
        assert told.code == 0
        assert found["battery notes"]["found"] == (
            "from vector-notes, with tables, views, commands"
        )
        batteries, _, order = found["agent Assistant"]["found"].partition(". Parts in order: ")
        assert batteries == "batteries: session, notes"
        parts = order.split(", ")
        assert parts[0] == "SubAgents"
        assert parts.index("Inbox") < parts.index("Settler") < parts.index("ChatGateway")
        assert parts[-1] == "notes"
        assert "ResponseHook" in parts
        assert found["agent Child"]["found"].startswith("batteries: none. Parts in order: Sub")
    shown = outlast("doctor", "--store", store)
    assert "Parts in order" in shown.out


@pytest.mark.usefixtures("forgotten_imports")
def test_the_doctor_says_what_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(announce(tmp_path, "other", "nowhere_at_all:B", "others")))
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "wrong.py").write_text("import nowhere_at_all")
    told = outlast("doctor", "--json")
    found = {each["what"]: each for each in told.json}
    assert told.code == 1
    assert found["battery other"]["verdict"] == found["agents"]["verdict"] == "bad"
    assert found["battery other"]["then"] == "Repair or remove others."
    assert "agents/wrong.py:1: ModuleNotFoundError" in found["agents"]["found"]
