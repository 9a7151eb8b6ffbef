"""script/quick, run as a program on small projects that are made for one test each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from timings import merged

SCRIPT = Path(__file__).parent.parent / "script" / "quick"

FILES = {
    "src/outlast/__init__.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from outlast.boats import Boat
            from outlast.trains import Train
    """,
    "src/outlast/boats.py": "from outlast.water import wet\nclass Boat: ...",
    "src/outlast/trains.py": "class Train: ...",
    "src/outlast/water.py": "wet = True",
    "src/outlast/store/__init__.py": "",
    "src/outlast/store/0001_first.sql": "SELECT 1;",
    "pyproject.toml": """
        [tool.pytest.ini_options]
        pythonpath = ["tests", "tests/boats"]
    """,
    "tests/conftest.py": "",
    "tests/helping.py": "from outlast import Boat",
    "tests/boats/served.py": "",
    "tests/boats/test_boats.py": "from outlast import Boat",
    "tests/boats/test_helped.py": "from helping import Boat\nfrom served import x",
    "tests/boats/test_patched.py": 'PLACE = "outlast.water.wet"',
    "tests/boats/test_process.py": 'PROGRAM = "served.py"',
    "tests/boats/sails/test_sails.py": "import served",
    "tests/store/test_tables.py": "import outlast.store",
    "tests/test_docs.py": "",
    "tests/trains/test_trains.py": "from outlast import Train",
    "docs/index.md": "# Boats",
}


class Project:
    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)
        self.git("init", "--quiet")
        self.commit()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        is_test = path.name.startswith("test_")
        path.write_text(dedent(text) + ("\ndef test_it(): ...\n" if is_test else ""))

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=self.root, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "A change")

    def took(self, function: str = "test_it", **seconds: float) -> None:
        folder = self.root / ".pytest_cache" / "v" / "outlast"
        folder.mkdir(parents=True)
        (self.root / ".gitignore").write_text(".pytest_cache/\n")
        self.commit()
        tests = {
            f"{path}::{function}[sqlite]": seconds[Path(path).stem]
            for path in FILES
            if Path(path).stem in seconds
        }
        (folder / "durations").write_text(json.dumps(tests))

    def quick(self, *options: str) -> tuple[list[str], str]:
        """What is to run, and what is said about it."""
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "--root", str(self.root), *options],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split(), done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


ON_BOATS = [f"tests/boats/test_{name}.py" for name in ("boats", "helped")]
ON_SERVED = [
    f"tests/boats/{name}.py" for name in ("sails/test_sails", "test_helped", "test_process")
]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("src/outlast/trains.py", ["tests/trains/test_trains.py"]),
        ("src/outlast/boats.py", ON_BOATS),
        ("src/outlast/water.py", [*ON_BOATS, "tests/boats/test_patched.py"]),
        ("tests/helping.py", ["tests/boats/test_helped.py"]),
        ("tests/boats/served.py", ON_SERVED),
        ("tests/trains/test_trains.py", ["tests/trains/test_trains.py"]),
        ("tests/trains/test_new.py", ["tests/trains/test_new.py"]),
        ("src/outlast/store/0001_first.sql", ["tests/store/test_tables.py"]),
        ("docs/index.md", ["tests/test_docs.py"]),
        ("tests/conftest.py", sorted(name for name in FILES if "/test_" in name)),
    ],
)
def test_what_can_have_been_touched(project: Project, changed: str, expected: list[str]) -> None:
    project.write(changed, FILES.get(changed, "") + "\n# changed")
    files, said = project.quick()
    assert files == expected
    assert f"changed since the last commit: {changed}" in said


def test_without_a_change_it_is_the_last_commit_and_a_revision_goes_further_back(
    project: Project,
) -> None:
    for name in ("boats", "trains"):
        project.write(f"src/outlast/{name}.py", "# changed\n" + FILES[f"src/outlast/{name}.py"])
        project.commit()
    files, said = project.quick()
    assert files == ["tests/trains/test_trains.py"]
    assert "changed in the last commit" in said
    files, said = project.quick("HEAD~2")
    assert files == [*ON_BOATS, "tests/trains/test_trains.py"]
    assert "changed since HEAD~2" in said


def test_the_nearest_fit_into_the_time_and_the_others_are_named(project: Project) -> None:
    project.took(test_boats=5, test_helped=5, test_patched=5)
    project.write("src/outlast/water.py", "wet = False")
    files, said = project.quick("--seconds", "11")
    assert files == ["tests/boats/test_boats.py", "tests/boats/test_patched.py"]
    assert "can have touched 3 test files; 2 run now: 10 s" in said
    assert "left out, further away: tests/boats (1)" in said


def test_a_test_that_takes_very_long_is_left_out_by_name(project: Project) -> None:
    project.took(test_trains=60)
    project.write("src/outlast/trains.py", "class Train: fast = True")
    files, said = project.quick()
    assert files == [
        "tests/trains/test_trains.py",
        "--deselect=tests/trains/test_trains.py::test_it[sqlite]",
    ]
    assert "left out, too long: tests/trains/test_trains.py::test_it[sqlite]" in said


def test_a_test_that_is_gone_takes_no_time(project: Project) -> None:
    project.took("test_gone", test_boats=14, test_helped=14)
    project.write("src/outlast/boats.py", "class Boat: ...")
    files, said = project.quick("--seconds", "12")
    assert files == ON_BOATS
    assert "10 s of tests" in said, "what is not known of a file"


def test_a_changed_test_runs_however_long_it_takes(project: Project) -> None:
    project.took(test_trains=14)
    project.write(
        "tests/trains/test_trains.py", FILES["tests/trains/test_trains.py"] + "\n# changed"
    )
    files, _ = project.quick("--seconds", "1")
    assert files == ["tests/trains/test_trains.py"]


def test_how_long_a_test_took_is_remembered_for_as_long_as_it_is_the_same() -> None:
    known = {"a::x[1]": 1.0, "a::x[2]": 1.0, "a::y[1]": 9.0, "a::z": 9.0, "b::x": 1.0}
    took = {"a::x[1]": 2.004, "a::y": 2.0, "a::z[1]": 2.0}
    assert merged(known, took) == {
        "a::x[1]": 2.0,
        "a::x[2]": 1.0,
        "a::y": 2.0,
        "a::z[1]": 2.0,
        "b::x": 1.0,
    }
