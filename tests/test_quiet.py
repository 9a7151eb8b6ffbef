"""Figures and pictures are made on a quiet machine, or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import options, quiet

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("load", "waited", "patience", "expected"),
    [
        (0.0, 0, 600, "run"),
        (0.99, 0, 600, "run"),
        (1.0, 0, 600, "wait"),
        (7.5, 599, 600, "wait"),
        (7.5, 600, 600, "refuse"),
        (0.5, 600, 600, "run"),
        (1.5, 0, 0, "refuse"),
    ],
)
def test_what_is_done_at_a_load(
    load: float, waited: float, patience: float, expected: quiet.Verdict
) -> None:
    assert quiet.verdict(load, waited, patience) == expected


def test_it_waits_until_the_load_is_below_the_limit() -> None:
    loads, slept, said = iter([3.0, 1.2, 0.8]), [], []  # type: ignore[var-annotated]
    found = quiet.until_quiet(1, load=lambda: next(loads), sleep=slept.append, say=said.append)
    assert (found, len(slept)) == (0.8, 2)
    assert said == ["the load average is 3.00; waiting for less than 1"]


def test_it_refuses_after_its_patience_and_says_what_to_do() -> None:
    slept: list[float] = []
    with pytest.raises(quiet.TooBusy) as refused:
        quiet.until_quiet(2, load=lambda: 4.25, sleep=slept.append, say=lambda _: None)
    assert sum(slept) == 120
    text = str(refused.value)
    assert "must be below 1, and still is 4.25 after 2 minutes" in text
    assert "--quiet 4" in text


def test_a_report_says_when_and_where_and_how_busy() -> None:
    found = quiet.conditions()
    line = quiet.described(found)
    assert str(found["date"]) in line
    assert str(found["machine"]) in line
    assert "load average" in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], None), (["--quiet"], quiet.PATIENCE), (["--quiet", "30"], 30.0)],
)
def test_the_option(arguments: list[str], expected: float | None) -> None:
    assert options.parse(arguments).quiet == expected


BUSY = """
import os, runpy, subprocess, sys

def nothing(*_, **__):  # should it not refuse: nothing is measured, and no picture is replaced
    raise AssertionError("it starts something")

subprocess.Popen.__init__ = nothing
os.getloadavg = lambda: (9.0, 9.0, 9.0)
sys.argv = [{name!r}, "--quiet", "0", *{more!r}]
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.parametrize("path", ["benchmarks/__main__.py", "script/pictures"])
def test_the_scripts_refuse_on_a_busy_machine(path: str, tmp_path: Path) -> None:
    more = ["--into", str(tmp_path)] if path == "script/pictures" else []
    source = BUSY.format(name=path, path=str(ROOT / path), more=more)
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 3, done.stderr
    assert "the load average must be below 1, and still is 9.00" in done.stderr
    assert "Traceback" not in done.stderr
