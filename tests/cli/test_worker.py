"""How a worker ends when its application cannot be loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from outlast.cli.serving.settings import NO_MEMORY, REFUSED

WORK = """
import socket, sys
from outlast.cli.serving import worker
from outlast.cli.serving.settings import Settings

def load(*_):
    raise {error}

worker.load = load
ours, theirs = socket.socketpair()
code = worker.work(Settings("nothing", dev={dev}), [], theirs)
print("ended with", code)
"""


@pytest.mark.parametrize(
    ("error", "dev", "code"),
    [
        ("MemoryError", False, NO_MEMORY),
        ("MemoryError", True, NO_MEMORY),
        ("worker.CannotLoad('no')", False, REFUSED),
        ("RuntimeError('half done')", True, REFUSED),
        ("RuntimeError('half done')", False, None),
    ],
)
def test_the_supervisor_can_tell_why_it_ended(error: str, dev: bool, code: int | None) -> None:
    """None: it dies of it, and is started again, since the next time it may work."""
    source = WORK.format(error=error, dev=dev)
    ran = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert ran.stdout == ("" if code is None else f"ended with {code}\n"), ran.stderr
    assert ran.returncode == (1 if code is None else 0)
