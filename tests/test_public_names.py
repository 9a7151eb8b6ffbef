"""What `outlast` offers by name, to people and to tools."""

from __future__ import annotations

import subprocess
import sys

import outlast


def test_dir_lists_what_can_be_imported() -> None:
    assert dir(outlast) == sorted(outlast.__all__)
    assert [name for name in outlast.__all__ if not hasattr(outlast, name)] == []
    assert "Any" not in dir(outlast)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert outlast.__version__ == version("outlast")


def test_types_that_public_signatures_mention_are_public() -> None:
    code = (
        "from outlast import ChatErrorStage, DataWriter, ModelFailed, OutputInvalid, RecoveryWriter, Step,"
        " SubmissionStatus, ToolResult, TurnStatus"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
