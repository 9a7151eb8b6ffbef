"""A terminal that is closed ends what was started in it: no process, no port and no lock stay behind."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import forked
from outlast.cli.serving.terminal import Hangup, hangup_action

LONG = 60.0  # seconds: only a test that fails waits that long
PROBE = """
from outlast import Agent, App

class Probe(Agent):
    pass

app = App(agents=[Probe], store="sqlite:///store.db")
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def descendants(pid: int) -> list[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [each for child in map(int, found) for each in (child, *descendants(child))]


class InTerminal:
    """A command in a terminal of its own, its controlling one, as a shell's foreground job."""

    def __init__(self, folder: Path, *arguments: str, nohup: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        self.master, slave = pty.openpty()
        (folder / "probe.py").write_text(PROBE)

        command = ["-m", "outlast.cli.main", *arguments, "--port", str(self.port)]
        self.process = forked.start(
            *command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            start_new_session=True,
            terminal=True,
            ignores_hangup=nohup,
        )
        os.close(slave)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.shown()
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as client:
                client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
                return b" 200 " in client.recv(100)
        except OSError:
            return False

    def shown(self) -> bytes:
        found = b""
        while select.select([self.master], [], [], 0)[0]:
            try:
                found += os.read(self.master, 65536)
            except OSError:
                break
        return found

    def close(self) -> None:
        os.close(self.master)

    def can_be_started_again(self) -> bool:
        """Whether port and lock are free."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                return False
        for path in self.folder.rglob("*.db.lock"):
            with path.open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    return False
        return True


@contextmanager
def in_terminal(folder: Path, *arguments: str, nohup: bool = False) -> Iterator[InTerminal]:
    made = InTerminal(folder, *arguments, nohup=nohup)
    there: list[int] = []
    try:
        until(made.is_ready)
        yield made
    finally:
        there = [made.process.pid, *descendants(made.process.pid)]
        if made.process.poll() is None:
            made.process.terminate()
            try:
                made.process.wait(20)
            except subprocess.TimeoutExpired:
                for pid in there:
                    os.kill(pid, signal.SIGKILL)
                made.process.wait()


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "probe.py"),
        ("serve", "probe.py", "--no-supervisor"),
        ("dev", "probe.py"),
        ("demo", "--no-browser"),
    ],
    ids=lambda each: " ".join(each),
)
def test_nothing_is_left_of_a_closed_terminal(tmp_path: Path, command: tuple[str, ...]) -> None:
    with in_terminal(tmp_path, *command) as server:
        there = [server.process.pid, *descendants(server.process.pid)]
        assert not server.can_be_started_again()
        server.close()
        assert server.process.wait(LONG) is not None
        until(lambda: not any(map(is_alive, there)))
        assert server.can_be_started_again()
        if "--no-supervisor" not in command:
            assert server.process.returncode in (0, 120), "in order; 120: stderr is gone"


def test_nohup_keeps_it(tmp_path: Path) -> None:
    with in_terminal(tmp_path, "serve", "probe.py", nohup=True) as server:
        workers = descendants(server.process.pid)
        server.close()
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(1)
        assert descendants(server.process.pid) == workers, "nor was it reloaded"
        assert server.is_ready()


def test_a_reload_has_a_signal_of_its_own_beside_a_terminal(tmp_path: Path) -> None:
    with in_terminal(tmp_path, "serve", "probe.py") as server:
        before = descendants(server.process.pid)
        server.process.send_signal(signal.SIGUSR2)
        until(lambda: bool(set(descendants(server.process.pid)) - set(before)))
        until(server.is_ready)
        assert not any(map(is_alive, before))


@pytest.mark.parametrize(
    ("has_terminal", "is_ignored", "expected"),
    [
        (True, False, "stop"),
        (True, True, "ignore"),
        (False, False, "reload"),
        (False, True, "reload"),
    ],
)
def test_what_a_hangup_means(has_terminal: bool, is_ignored: bool, expected: Hangup) -> None:
    assert hangup_action(has_terminal=has_terminal, is_ignored=is_ignored) == expected
