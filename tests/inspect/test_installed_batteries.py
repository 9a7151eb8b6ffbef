"""Which batteries are installed, as packages announce them: found without an import, and judged when used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from announced import announce
from outlast.core.loading import load
from outlast.inspect import batteries
from outlast.inspect.batteries import BatteryUnusable, installed, load_battery
from vector_notes import BATTERY

NOTES = "vector_notes.battery:BATTERY"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, with nothing in it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_there_are_none_unless_a_package_announces_one(packages: Path) -> None:
    assert "notes" not in installed()
    announce(packages, "notes", NOTES)
    found = installed()["notes"]
    assert (found.name, found.path, found.origin) == ("notes", NOTES, "vector-notes")
    assert found.load() is BATTERY


def test_those_of_outlast_come_first(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(packages, "notes", "somebody.else:BATTERY", "another")
    monkeypatch.setattr(batteries, "OWN", {"notes": NOTES})
    assert installed()["notes"].origin == "outlast"


def test_of_two_with_one_name_one_is_taken_always_the_same(packages: Path) -> None:
    announce(packages, "notes", "b.second:BATTERY", "b")
    announce(packages, "notes", "a.first:BATTERY", "c")
    assert installed()["notes"].path == "a.first:BATTERY"


@pytest.mark.parametrize(
    ("name", "path", "told"),
    [
        (
            "notes",
            "nowhere_at_all:BATTERY",
            "ModuleNotFoundError: No module named 'nowhere_at_all'",
        ),
        ("notes", "vector_notes.battery:NOTHING", "vector_notes.battery has no 'NOTHING'"),
        ("notes", "vector_notes.battery", "must be 'package.module:NAME'"),
        ("notes", "vector_notes.battery:HasNotes", "must be a Battery, got <class"),
        ("jots", NOTES, f"vector-notes announces {NOTES} as 'jots', but its name is 'notes'"),
    ],
)
def test_one_that_cannot_be_used_says_why(packages: Path, name: str, path: str, told: str) -> None:
    announce(packages, name, path)
    with pytest.raises(BatteryUnusable, match=told.replace("(", r"\(")):
        installed()[name].load()


def test_one_that_nobody_announces_can_be_named_by_its_place() -> None:
    assert load_battery(NOTES) is BATTERY
    assert load("vector_notes.views:VIEWS")[0].title == "Notes"


def test_finding_them_imports_nothing_of_them(packages: Path) -> None:
    announce(packages, "notes", NOTES)
    code = (
        "import sys; from outlast.inspect.batteries import installed; found = installed();"
        "theirs = ('vector_notes', 'outlast.agent', 'outlast.session');"
        "print(*found, *(name for name in sys.modules if name.startswith(theirs)))"
    )
    environment = {"PYTHONPATH": ":".join([str(packages), *filter(None, sys.path)])}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["session", "notes"]
