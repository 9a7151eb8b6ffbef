"""A fork of a process that has imported outlast is a process like one that is started afresh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forked

LONG = 60.0  # seconds: only a test that fails waits that long
TELL = """
import json, os, sys
about = {"argv": sys.argv, "cwd": os.getcwd(), "mark": os.environ.get("MARK"), "home": "HOME" in os.environ}
about |= {"path": sys.path[0], "name": __name__, "parent": os.getppid(), "leads": os.getsid(0) == os.getpid()}
about |= {"files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1]}
about |= {"found": os.environ.get("PYTHONPATH") in sys.path[1:]}
about |= {"threads": len(os.listdir("/proc/self/task"))}
print(json.dumps(about), end="")
"""


@pytest.fixture
def teller(tmp_path: Path) -> Path:
    (tmp_path / "tell.py").write_text(TELL)
    return tmp_path


@pytest.mark.parametrize("arguments", [("-m", "tell", "a", "-b"), ("tell.py", "a", "-b")])
def test_it_sees_what_a_fresh_interpreter_sees(teller: Path, arguments: tuple[str, ...]) -> None:
    environment = {"MARK": "x", "PYTHONPATH": str(Path(__file__).parent)}
    given = {"cwd": teller, "env": environment}
    command = [sys.executable, *arguments]
    fresh = subprocess.run(command, **given, capture_output=True, text=True, check=True)
    assert forked.run(*arguments, timeout=LONG, **given).stdout == fresh.stdout
    assert f'"parent": {os.getpid()}' in fresh.stdout


@pytest.mark.parametrize("target", ["nothing.py", "json"])
def test_it_says_what_a_fresh_interpreter_says(tmp_path: Path, target: str) -> None:
    arguments = ("-m", "outlast.cli.main", "serve", target, "--port", "0")
    command = [sys.executable, *arguments]
    fresh = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    fork = forked.run(*arguments, cwd=tmp_path, timeout=LONG)
    assert (fork.returncode, fork.stdout, fork.stderr) == (2, fresh.stdout, fresh.stderr)


ENDS = {
    "return": "print('all', end='')",
    "sys.exit(3)": "import sys\nsys.exit(3)",
    "sys.exit(text)": "import sys\nsys.exit('no')",
    "sys.exit(-1)": "import sys\nsys.exit(-1)",
    "os._exit(4)": "import os\nos._exit(4)",
    "an interrupt": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)",
    "exit functions": "import atexit, sys\natexit.register(print, 'end')\nprint('begin')\nsys.exit(5)",
    "a thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.01), print('late'))).start()",
}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_it_ends_as_a_fresh_interpreter_ends(tmp_path: Path, code: str) -> None:
    (tmp_path / "end.py").write_text(code)
    command = [sys.executable, "-S", "end.py"]
    fresh = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    fork = forked.run("end.py", cwd=tmp_path, timeout=LONG)
    assert (fork.returncode, fork.stdout) == (fresh.returncode, fresh.stdout)
    assert fork.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]


def test_an_error_is_shown_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("1 / 0\n")
    done = forked.run("wrong.py", cwd=tmp_path, timeout=LONG)
    assert done.returncode == 1
    assert 'wrong.py", line 1' in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_it_reads_what_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text("print(input('? '), end='')")
    done = forked.run("echo.py", input="yes\n", cwd=tmp_path, timeout=LONG)
    assert (done.returncode, done.stdout) == (0, "? yes")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_can_be_killed(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "stay.py").write_text("import signal\nsignal.pause()\n")
    with (tmp_path / "log").open("w") as log:
        process = forked.start("stay.py", cwd=tmp_path, stdout=log, stderr=log)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(LONG) == process.poll() == -number
    process.kill()  # and again: nothing
    assert not Path(f"/proc/{process.pid}").exists()


def test_it_leads_a_session_of_its_own_if_it_shall(teller: Path) -> None:
    with (teller / "log").open("w") as log:
        process = forked.start(
            "tell.py", cwd=teller, stdout=log, stderr=log, start_new_session=True
        )
    assert process.wait(LONG) == 0
    assert '"leads": true' in (teller / "log").read_text()


def test_orphans_of_others_do_not_become_children_here(tmp_path: Path) -> None:
    (tmp_path / "leave.py").write_text(
        "import os, time\nread, write = os.pipe()\n"
        "if os.fork():\n    os.read(read, 1)\n"  # until the child is alone with its own parent
        "else:\n    parent = os.getppid()\n    os.write(write, b'x')\n"
        "    while os.getppid() == parent: time.sleep(0.001)\n    print(os.getppid(), end='')\n"
    )
    ended, open_end = os.pipe()
    with os.fdopen(ended) as output:
        with os.fdopen(open_end, "w") as file:
            process = forked.start("leave.py", cwd=tmp_path, stdout=file, stderr=file)
        assert process.wait(LONG) == 0
        assert output.read() != str(os.getpid())
