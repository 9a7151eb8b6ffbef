"""The settings of the property tests: no verdict depends on the speed of the machine."""

from __future__ import annotations

import subprocess
import unicodedata
from pathlib import Path

from hypothesis import HealthCheck, settings

PROJECT = Path(__file__).parent.parent


def test_no_property_test_fails_because_the_machine_is_slow() -> None:
    assert settings().deadline is None
    assert [*settings().suppress_health_check] == [HealthCheck.too_slow]


def test_a_property_test_fails_in_every_run_or_in_none() -> None:
    assert settings().derandomize
    assert settings().print_blob


def test_the_character_table_is_built_before_the_first_test() -> None:
    tables = PROJECT / ".hypothesis" / "unicode_data" / unicodedata.unidata_version
    assert (tables / "charmap.json.gz").is_file()


def test_git_ignores_the_tables() -> None:
    ignored = subprocess.run(
        ["git", "check-ignore", ".hypothesis/unicode_data"], cwd=PROJECT, capture_output=True
    )
    assert ignored.returncode in (0, 128), "128: this is no clone"
