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
ours.setblocking(False)
try:
    assert ours.recv(1000).startswith(b'f{{"kind": "code"')
    print("reported")
except BlockingIOError:
    pass
print("ended with", code)
"""


@pytest.mark.parametrize(
    ("error", "dev", "code"),
    [
        ("MemoryError", False, NO_MEMORY),
        ("MemoryError", True, NO_MEMORY),
        ("worker.CannotLoad('no')", False, REFUSED),
        ("RuntimeError('half done')", True, REFUSED),
        ("RuntimeError('half done')", False, REFUSED),
        ("SystemExit(0)", False, REFUSED),
    ],
)
def test_the_supervisor_can_tell_why_it_ended(error: str, dev: bool, code: int) -> None:
    source = WORK.format(error=error, dev=dev)
    ran = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    reported = "" if code == NO_MEMORY else "reported\n"
    assert ran.stdout == f"{reported}ended with {code}\n", ran.stderr
    assert ran.stderr == "", "what is wrong is the supervisor's to say"
    assert ran.returncode == 0
