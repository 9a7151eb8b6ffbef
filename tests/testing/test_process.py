"""`Worker`: what another process can be given, and what not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from outlast import Agent
from outlast.testing import Worker


class Known(Agent): ...


async def drive(host: Any) -> None: ...


def run_as_main(code: str, folder: Path) -> str:
    """What a script that is run by itself ends with."""
    (folder / "script.py").write_text(dedent(code))
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=os.environ, capture_output=True, text=True
    )
    return ended.stderr.strip().splitlines()[-1]


def test_agents_of_a_script_are_refused_with_the_advice_to_move_them(tmp_path: Path) -> None:
    said = run_as_main(
        """
        from outlast import Agent
        from outlast.testing import Worker

        class Counter(Agent): ...

        async def drive(host): ...

        Worker(agents=[Counter], drive=drive, store="sqlite:///x.db")
        """,
        tmp_path,
    )
    assert said.startswith(
        "ValueError: Counter is defined in __main__, which the worker cannot import"
    )
    assert "Move it into a module of its own" in said


def test_what_is_defined_inside_a_function_is_refused(sqlite_url: str) -> None:
    class Local(Agent): ...

    with pytest.raises(ValueError, match=r"Local cannot be imported .* at the top of a module"):
        Worker(agents=[Local], drive=drive, store=sqlite_url)


def test_what_stands_at_the_top_of_a_module_is_run(sqlite_url: str) -> None:
    assert not Worker(agents=[Known], drive=drive, store=sqlite_url).run().killed
