"""script/invariants, run as a program on small projects that are made for one test each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

SCRIPT = Path(__file__).parent.parent / "script" / "invariants"


class Project:
    """A folder with a page of promises and some tests, and the script to run on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "docs").mkdir()
        (root / "tests").mkdir()

    def promise(self, *rows: str) -> None:
        lines = ["## A. Fibers", "", "| id | promise | status |", "| --- | --- | --- |", *rows]
        (self.root / "docs" / "invariants.md").write_text("\n".join(lines) + "\n")

    def write(self, path: str, source: str) -> None:
        target = self.root / "tests" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("import pytest\n\n" + dedent(source))

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(SCRIPT), "--root", str(self.root), *options],
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )

    def errors(self) -> list[str]:
        """What --check complains about; its exit status must say the same."""
        result = self.run("--check")
        assert result.stderr == ""
        found = [line for line in result.stdout.splitlines() if line.startswith("error: ")]
        assert result.returncode == (1 if found else 0)
        return [line.removeprefix("error: ") for line in found]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_live_promise_without_a_test_fails_the_check(project: Project) -> None:
    project.promise("| A1 | Rows are durable. | |", "| A2 | Rows go away. | |")
    project.write("test_rows.py", '@pytest.mark.invariant("A1")\ndef test_durable(): ...')

    assert project.errors() == ["A2 has no test"]


def test_without_check_the_listing_never_fails(project: Project) -> None:
    project.promise("| A1 | Rows are durable. | |")

    result = project.run()

    assert result.returncode == 0
    assert "error: A1 has no test" in result.stdout


def test_a_proved_promise_is_listed_with_its_tests(project: Project) -> None:
    project.promise("| A1 | Rows are durable. | |", "| A2 | Rows go away. | |")
    project.write(
        "agent/test_rows.py",
        """
        @pytest.mark.invariant("A1", "A2")
        async def test_both(): ...

        @pytest.mark.virtual_time
        @pytest.mark.invariant("A2")
        def test_one(): ...
        """,
    )

    assert project.errors() == []
    assert project.run().stdout == dedent(
        """
        A. Fibers
          A1   Rows are durable.
               tests/agent/test_rows.py::test_both
          A2   Rows go away.
               tests/agent/test_rows.py::test_both
               tests/agent/test_rows.py::test_one

        2 promises: 2 proved, 0 unproved, 0 retired, 0 later (2 tests)
        """
    )


def test_a_marker_on_a_class_counts_for_the_tests_inside(project: Project) -> None:
    project.promise("| A1 | Rows are durable. | |", "| A2 | Rows go away. | |")
    project.write(
        "test_rows.py",
        """
        @pytest.mark.invariant("A1")
        class TestRows:
            def test_plain(self): ...

            @pytest.mark.invariant("A2")
            def test_own(self): ...

            def helper(self): ...
        """,
    )

    assert project.errors() == []
    listing = project.run().stdout
    assert listing.count("tests/test_rows.py::TestRows::test_plain") == 1
    assert listing.count("tests/test_rows.py::TestRows::test_own") == 2
    assert "helper" not in listing


def test_a_class_without_tests_proves_nothing(project: Project) -> None:
    project.promise("| A1 | Rows are durable. | |")
    project.write("test_rows.py", '@pytest.mark.invariant("A1")\nclass TestRows: ...')

    assert project.errors() == ["A1 has no test"]


@pytest.mark.parametrize(
    "value",
    ['pytest.mark.invariant("A1")', '[pytest.mark.virtual_time, pytest.mark.invariant("A1")]'],
)
def test_a_marker_of_the_module_counts_for_all_its_tests(project: Project, value: str) -> None:
    project.promise("| A1 | Rows are durable. | |")
    project.write(
        "test_rows.py",
        f"""
        pytestmark = {value}

        def test_outside(): ...

        class TestRows:
            def test_inside(self): ...
        """,
    )

    assert project.errors() == []
    listing = project.run().stdout
    assert "tests/test_rows.py::test_outside" in listing
    assert "tests/test_rows.py::TestRows::test_inside" in listing


def test_a_marker_on_one_parameter_counts(project: Project) -> None:
    project.promise("| A1 | Rows are durable. | |")
    project.write(
        "test_rows.py",
        """
        @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.invariant("A1"))])
        def test_rows(n): ...
        """,
    )

    assert project.errors() == []


def test_a_test_that_names_an_unknown_id_fails_the_check(project: Project) -> None:
    project.promise("| A1 | Rows are durable. | |")
    project.write("test_rows.py", '@pytest.mark.invariant("A1", "Z9")\ndef test_rows(): ...')

    assert project.errors() == [
        "tests/test_rows.py::test_rows names Z9, which is not in docs/invariants.md"
    ]


@pytest.mark.parametrize("arguments", ["", "A1", '*["A1"]', '"A1", 2'])
def test_a_marker_whose_ids_cannot_be_read_fails_the_check(
    project: Project, arguments: str
) -> None:
    project.promise("| A1 | Rows are durable. | later |")
    project.write("test_rows.py", f"@pytest.mark.invariant({arguments})\ndef test_rows(): ...")

    assert project.errors() == [
        "tests/test_rows.py::test_rows: an invariant marker takes ids as plain strings"
    ]


def test_a_retired_promise_is_listed_with_its_reason(project: Project) -> None:
    project.promise("| A1 | Two rows agree. | retired: there is one row |")

    assert project.errors() == []
    assert "  A1   Two rows agree.\n       retired: there is one row\n" in project.run().stdout


def test_a_retired_promise_with_a_test_fails_the_check(project: Project) -> None:
    project.promise("| A1 | Two rows agree. | retired: there is one row |")
    project.write("test_rows.py", '@pytest.mark.invariant("A1")\ndef test_rows(): ...')

    assert project.errors() == ["A1 is retired, but tests/test_rows.py::test_rows proves it"]


def test_a_promise_for_later_needs_no_test_and_one_that_has_some_is_noted(
    project: Project,
) -> None:
    project.promise("| A1 | Rows are durable. | later |", "| A2 | Rows go away. | later |")
    project.write("test_rows.py", '@pytest.mark.invariant("A2")\ndef test_rows(): ...')

    assert project.errors() == []
    notes = [line for line in project.run().stdout.splitlines() if line.startswith("note: ")]
    assert notes == ["note: A2 has tests: time to clear its 'later'"]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| A1 | Rows are durable. | later |", "docs/invariants.md:6: A1 is there twice"),
        ("| A2 | Rows go away. |", "a row is | id | promise | status |, not | A2 |"),
        ("| A2 | Rows | go away. | later |", "a row is | id | promise | status |, not | A2 |"),
        ("| A2 |  | later |", "a row is | id | promise | status |, not | A2 |"),
        ("| second | Rows go away. | later |", "a row is | id | promise | status |, not | second"),
        ("| A2 | Rows go away. | soon |", "A2 is neither live, 'later' nor 'retired: why'"),
        ("| A2 | Rows go away. | retired: |", "A2 is neither live, 'later' nor 'retired: why'"),
    ],
)
def test_a_malformed_row_fails_the_check(project: Project, row: str, complaint: str) -> None:
    project.promise("| A1 | Rows are durable. | later |", row)

    assert complaint in project.errors()[0]


def test_a_missing_page_fails_the_check(project: Project) -> None:
    assert project.errors() == ["docs/invariants.md is missing"]


def test_a_page_without_promises_fails_the_check(project: Project) -> None:
    project.promise()

    assert project.errors() == ["docs/invariants.md holds no promise"]


def test_a_test_file_that_does_not_parse_fails_the_check(project: Project) -> None:
    project.promise("| A1 | Rows are durable. | later |")
    project.write("test_rows.py", "def test_rows(:")

    [error] = project.errors()
    assert error.startswith("tests/test_rows.py:3: ")


def test_the_listing_fits_into_100_columns_and_a_pipe_gets_no_colour(project: Project) -> None:
    project.promise(
        f"| A1 | {'Rows are durable and go away. ' * 9} | |",
        f"| A2 | Two rows agree. | retired: {'there is one row and ' * 9} no other |",
        "| A3 | Rows go away. | |",
    )
    name = "test_" + "the_row_of_a_fiber_is_durable_before_its_function_runs_and_gone_after"
    project.write(
        "agent/fibers/test_rows_of_fibers.py",
        f'@pytest.mark.invariant("A1")\ndef {name}(): ...',
    )

    listing = project.run().stdout

    assert max(len(line) for line in listing.splitlines()) <= 100
    assert "\033" not in listing
    assert f"       tests/agent/fibers/test_rows_of_fibers.py\n         ::{name}\n" in listing


def test_the_page_of_this_project_is_well_formed() -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, encoding="utf-8", check=True
    )

    errors = [line for line in result.stdout.splitlines() if line.startswith("error: ")]
    assert [line for line in errors if not line.endswith("has no test")] == []
    assert "  A1   " in result.stdout
    assert "  C5b  " in result.stdout
    assert "  P4   " in result.stdout
