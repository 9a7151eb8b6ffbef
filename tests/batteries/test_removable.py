"""Every battery can be taken away: nothing else needs it, and stores that it has written stay usable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from removing import Defined, add_rows, defined_in, take_away

from outlast.agent.battery import Battery
from outlast.store.url import open_store
from vector_notes import BATTERY

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "outlast"
SAMPLE = Defined("notes", "vector_notes", "vector_notes.battery")  # of a third party
ALL = [SAMPLE, *defined_in(PACKAGE)]
THINK = """
from outlast.chat import think as chat
from outlast.tasks.battery import HasNotes


class Think(HasNotes, chat.Think): ...
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of outlast, with what is compiled, to take something away from."""
    target = tmp_path / "copied" / "outlast"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("*-pytest-*.pyc"))
    return target


async def live_without(package: Path, battery: Battery, url: str, tmp_path: Path) -> None:
    """Write a store with the battery, check the imports of the package, and live there with it."""
    tables: list[str] = []
    schemas = [] if battery.schema is None else [battery.schema]
    store = await open_store(url, schemas=schemas)
    for schema in schemas:
        tables += schema.owned
        await add_rows(store, schema, "Talker/t")
    await store.close()
    run(sys.executable, ROOT / "script" / "imports", package)
    copy = f"sqlite:///{tmp_path}/copy.db"
    run(
        sys.executable,
        Path(__file__).parent / "without.py",
        url,
        copy,
        *tables,
        path=package.parent,
    )


def run(*command: str | Path, path: Path | None = None) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def source_of(package: Path) -> str:
    return "".join(path.read_text() for path in package.rglob("*.py"))


@pytest.mark.parametrize("defined", ALL, ids=[each.name for each in ALL])
async def test_it_can_be_taken_away(
    defined: Defined, package: Path, store_url: str, tmp_path: Path
) -> None:
    if defined is not SAMPLE:
        take_away(package, defined.folder)
    await live_without(package, defined.load(), store_url, tmp_path)


# --- the tests of outlast's own can fail ---------------------------------------------------------


@pytest.fixture
def planted(package: Path) -> Path:
    """The sample as if it were a battery of outlast, in the place of one that is to come."""
    folder = package / "tasks"
    shutil.rmtree(folder, ignore_errors=True)
    sample = ROOT / "examples" / "vector_notes" / "vector_notes"
    shutil.copytree(sample, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in folder.glob("*.py"):
        moved = path.read_text().replace("vector_notes", "outlast.tasks")
        moved = moved.replace("from outlast import Agent", "from outlast.agent.agent import Agent")
        names = "from outlast.chat.tools.declare import ToolCall, tool"
        path.write_text(moved.replace("from outlast import ToolCall, tool", names))
    (package / "think.py").write_text(THINK)
    return package


def test_a_folder_that_defines_one_is_found(planted: Path) -> None:
    found = [each for each in defined_in(planted) if each.folder == "tasks"]
    assert found == [Defined("notes", "tasks", "outlast.tasks.battery")]
    assert SAMPLE.load() is BATTERY


async def test_one_that_is_named_in_one_place_goes_without_a_trace(
    planted: Path, sqlite_url: str, tmp_path: Path
) -> None:
    names = planted / "inspect" / "batteries.py"
    with names.open("a") as file:
        file.write('OWN = {"notes": "outlast.tasks.battery:BATTERY", "files": "outlast.files:X"}\n')
    run(sys.executable, ROOT / "script" / "imports", planted)
    take_away(planted, "tasks")
    await live_without(planted, BATTERY, sqlite_url, tmp_path)
    left = source_of(planted)
    assert "outlast.tasks" not in left
    assert "class Think(chat.Think)" in left
    assert "OWN = {'files': 'outlast.files:X'}" in left


async def test_one_that_others_need_cannot_be_taken_away(
    planted: Path, sqlite_url: str, tmp_path: Path
) -> None:
    with (planted / "demo" / "agent.py").open("a") as file:
        file.write("\nfrom outlast.tasks.battery import HasNotes\n")
    take_away(planted, "tasks")
    with pytest.raises(AssertionError, match="No module named 'outlast.tasks'"):
        await live_without(planted, BATTERY, sqlite_url, tmp_path)
