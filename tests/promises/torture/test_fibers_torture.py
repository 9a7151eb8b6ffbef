"""`script/torture fibers` in small: a few kills on each engine, and proof that its checker can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from torture import Torture, a_database, a_file
from torture_checks import Violation

pytestmark = pytest.mark.usefixtures("forks")


def torture(engine: str, folder: Path, *, kills: int, sabotage: str | None = None) -> Torture:
    return Torture(
        engine, folder, kills=kills, seed=1, round=3, sabotage=sabotage, tell=lambda text: None
    )


@pytest.mark.invariant("A1", "A3", "A8", "A13", "B1")
def test_a_few_kills_lose_repeat_and_leave_nothing_on_sqlite(tmp_path: Path) -> None:
    assert torture("sqlite", tmp_path, kills=3).run(a_file(tmp_path)).steps > 0


@pytest.mark.invariant("A1", "A3", "A8", "A13", "B1")
def test_a_few_kills_lose_repeat_and_leave_nothing_on_postgresql(
    tmp_path: Path, postgres: str
) -> None:
    with a_database(postgres) as place:
        assert torture("postgresql", tmp_path, kills=3).run(place).steps > 0


@pytest.mark.parametrize(
    ("sabotage", "finding"),
    [
        ("stash", "though its step was counted|twice instead of once"),
        ("forget", "admitted, which is gone"),
    ],
)
def test_what_is_broken_on_purpose_is_found(sabotage: str, finding: str, tmp_path: Path) -> None:
    with pytest.raises(Violation, match=finding):
        torture("sqlite", tmp_path, kills=20, sabotage=sabotage).run(a_file(tmp_path))
