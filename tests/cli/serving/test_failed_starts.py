"""`outlast serve` and `outlast dev` when the application cannot start: one line, and what happens next."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from urllib.parse import parse_qs, urlsplit

import pytest

import forked
from outlast.cli.load.load import CannotLoad, InvalidTarget
from outlast.cli.serving.failures import Failure, Kind, Next, failure_of, is_passing, next_step
from outlast.core.errors import StoreCorrupt, StoreError, StoreLocked, StoreUnavailable

LONG = 60.0  # seconds: only a test that fails waits that long
GOOD = """
from outlast import Agent, App

class Probe(Agent):
    pass

app = App(agents=[Probe], store="sqlite:///probe.db")
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("-m", "outlast.cli.main", *arguments, timeout=LONG, cwd=folder)


def refused(folder: Path, *arguments: str) -> list[str]:
    """What a start that must fail says, line by line. Its exit status must be 2."""
    done = run(folder, *arguments, "--port", str(free_port()))
    assert done.returncode == 2, done.stderr
    return done.stderr.splitlines()


class Started:
    """A command that goes on, and what it has written."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.path = folder / "log"
        with self.path.open("wb") as log:
            self.process = forked.start(
                "-m",
                "outlast.cli.main",
                *arguments,
                "--port",
                str(self.port),
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.path.read_text()

    def until(self, condition: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + LONG
        while not condition(self.log):
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def is_ready(self, _: str = "") -> bool:
        with closing(socket.socket()) as client:
            client.settimeout(5)
            try:
                client.connect(("127.0.0.1", self.port))
                client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
                return b" 200 " in client.recv(100)
            except OSError:
                return False


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Started]:
    made = Started(folder, *arguments)
    try:
        yield made
    finally:
        made.process.send_signal(signal.SIGTERM)
        try:
            made.process.wait(20)
        except subprocess.TimeoutExpired:
            made.process.kill()
            made.process.wait()


# --- the first start -----------------------------------------------------------------------------

BROKEN = {
    "a syntax error": (
        {"probe.py": "x = 1\ny = x +\n"},
        "probe.py",
        ["cannot import probe.py: SyntaxError: invalid syntax (probe.py:2)"],
    ),
    "a name that is not there": (
        {"probe.py": "import os\nfrom os import nothing_like_it\n"},
        "probe.py:app",
        ["cannot import probe.py:app: ImportError: cannot import name", "(probe.py:2)"],
    ),
    "a package that is not installed": (
        {"probe.py": "\n\nimport no_such_package.deep\n"},
        "probe",
        ["ModuleNotFoundError: No module named 'no_such_package'", "(probe.py:3)", "installed"],
    ),
    "an error in a module that it imports": (
        {"probe.py": "import mine\n", "mine.py": "import json\njson.loads('{')\n"},
        "probe.py",
        ["cannot import probe.py: JSONDecodeError: ", "(mine.py:2)"],
    ),
    "sys.exit()": (
        {"probe.py": "import sys\nsys.exit('set PROBE_URL')\n"},
        "probe.py",
        ["SystemExit: set PROBE_URL (probe.py:2)"],
    ),
    "an agent of a folder": (
        {"agents/probe.py": "import mine\n", "mine.py": "\nmissing\n"},
        "agents/",
        ["cannot import agents/probe.py:1: NameError: name 'missing'", "(mine.py:2)"],
    ),
    "no file": ({}, "prob.py", ["file prob.py not found"]),
    "no folder": ({}, "agents/", ["folder agents/ not found", "outlast init"]),
    "no module": ({}, "prob:app", ["module 'prob' not found"]),
    "no App of that name": ({"probe.py": GOOD}, "probe.py:main", ["no App named 'main'", "app"]),
    "no agents": ({"probe.py": "x = 1\n"}, "probe.py", ["neither an App nor an agent class"]),
    "no agents in a folder": (
        {"agents/_x.py": ""},
        "agents/",
        ["no agents in agents; put them"],
    ),
    "an App whose start raises": (
        {
            "probe.py": GOOD
            + dedent("""
            import contextlib

            class Broken(App):
                @contextlib.asynccontextmanager
                async def lifespan(self, _=None):
                    raise LookupError("no such region")
                    yield

            app = Broken(agents=[Probe], store="sqlite:///probe.db")
            """)
        },
        "probe.py:app",
        ["cannot start: LookupError: no such region (probe.py:14)"],
    ),
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


ALSO = ("a syntax error", "sys.exit()", "no file", "an App whose start raises")


@pytest.mark.parametrize(
    ("case", "option"),
    [(case, None) for case in BROKEN]
    + [(case, option) for case in ALSO for option in ("--preload", "--no-supervisor")],
)
def test_what_cannot_be_served_is_one_line_and_exit_status_2(
    tmp_path: Path, case: str, option: str | None
) -> None:
    files, target, told = BROKEN[case]
    write(tmp_path, files)
    (line,) = refused(tmp_path, "serve", target, *([option] if option else []))
    assert line.startswith("outlast: ")
    for words in told:
        assert words in line


@pytest.mark.parametrize("option", [None, "--preload", "--no-supervisor"])
def test_a_locked_store_is_one_line_that_names_its_holder(
    tmp_path: Path, option: str | None
) -> None:
    write(tmp_path, {"probe.py": GOOD})
    with started(tmp_path, "serve", "probe.py") as first:
        first.until(first.is_ready)
        (line,) = refused(tmp_path, "serve", "probe.py", *([option] if option else []))
        assert "StoreLocked: " in line
        pid = line.partition("is in use by process ")[2].split()[0]
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        assert int(parent) == first.process.pid


def test_a_schema_that_another_server_has_is_one_line_that_names_it(
    tmp_path: Path, postgres_url: str
) -> None:
    write(tmp_path, {"probe.py": GOOD})
    with started(tmp_path, "serve", "probe.py", "--store", postgres_url) as first:
        first.until(first.is_ready)
        (line,) = refused(tmp_path, "serve", "probe.py", "--store", postgres_url, "--workers", "2")
        assert "StoreLocked: the PostgreSQL schema" in line
        pid = line.partition("is in use by process ")[2].split()[0]
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        assert int(parent) == first.process.pid


def test_a_store_that_is_damaged_or_none_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, {"probe.py": GOOD})
    (tmp_path / "probe.db").write_bytes(b"this is no database " * 100)
    (line,) = refused(tmp_path, "serve", "probe.py")
    assert "StoreCorrupt: " in line
    (line,) = refused(tmp_path, "serve", "probe.py", "--store", "mysql://there")
    assert "StoreURLError: 'mysql://there' is not a store URL" in line
    with closing(sqlite3.connect(tmp_path / "newer.db")) as db:
        db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)")
        db.execute("INSERT INTO meta VALUES ('schema_version', '9999')")
        db.commit()
    (line,) = refused(tmp_path, "serve", "probe.py", "--store", "sqlite:///newer.db")
    assert "Store" in line


@pytest.mark.parametrize("name", ["serve", "dev"])
def test_a_port_in_use_and_bad_options_have_exit_status_2(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"probe.py": GOOD})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options, told in (
            (["--port", port], f"port {port} of 127.0.0.1 is in use"),
            (["--port", "70000"], "--port"),
            (["--log-level", "loud"], "the log level must be one of critical, error"),
            (["--host", "no.such.host.invalid"], "cannot listen on"),
        ):
            done = run(tmp_path, name, "probe.py", *options)
            assert (done.returncode, told in done.stderr) == (2, True), done.stderr
            assert "Traceback" not in done.stderr


def test_a_traceback_is_shown_to_those_who_ask(tmp_path: Path) -> None:
    write(tmp_path, {"probe.py": "x = 1 / 0\n"})
    assert "--log-level debug shows the traceback" in refused(tmp_path, "serve", "probe.py")[0]
    shown = refused(tmp_path, "serve", "probe.py", "--log-level", "debug")
    assert any(line.startswith("Traceback") for line in shown)
    assert any("probe.py" in line and "line 1" in line for line in shown)


# --- PostgreSQL ----------------------------------------------------------------------------------


def test_an_unknown_database_is_final(tmp_path: Path, postgres_url: str) -> None:
    write(tmp_path, {"probe.py": GOOD})
    base, _, query = postgres_url.partition("?")
    url = f"{base.rpartition('/')[0]}/no_such_database?{query}"
    (line,) = refused(tmp_path, "serve", "probe.py", "--store", url)
    assert 'database "no_such_database" does not exist' in line


@contextmanager
def refusing_server(code: str, message: str) -> Iterator[int]:
    """A PostgreSQL that answers every login with an error."""

    def field(kind: bytes, text: str) -> bytes:
        return kind + text.encode() + b"\0"

    said = field(b"S", "FATAL") + field(b"V", "FATAL") + field(b"C", code) + field(b"M", message)
    answer = b"E" + struct.pack("!i", len(said) + 5) + said + b"\0"
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    if client.recv(8)[4:] == struct.pack("!i", 80877103):  # it asks for TLS
                        client.sendall(b"N")
                    client.recv(4096)
                    client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_a_wrong_password_is_final_and_not_shown(tmp_path: Path) -> None:
    write(tmp_path, {"probe.py": GOOD})
    with refusing_server("28P01", 'password authentication failed for user "me"') as port:
        url = f"postgresql://me:sesame@127.0.0.1:{port}/chat"
        (line,) = refused(tmp_path, "serve", "probe.py", "--store", url)
    assert "password authentication failed" in line
    assert "sesame" not in line


def test_a_database_that_is_away_is_said_once_and_served_from_soon_after_it_comes_back(
    tmp_path: Path, postgres: str
) -> None:
    write(tmp_path, {"probe.py": GOOD})
    folder = parse_qs(urlsplit(postgres).query)["host"][0]
    port = free_port()
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres?schema=away&sslmode=disable"
    with started(tmp_path, "serve", "probe.py", "--store", url, "--log-level", "debug") as server:
        server.until(lambda log: log.count("was forked") + log.count("was spawned") >= 4)
        (said,) = [line for line in server.log.splitlines() if "failed to start" in line]
        assert "StoreUnavailable: PostgreSQL at postgresql://postgres@127.0.0.1" in said
        assert said.endswith("retrying every 1 s")
        looks = server.log.count("was forked") + server.log.count("was spawned")
        with forwarding(port, f"{folder}/.s.PGSQL.5432"):
            server.until(lambda log: "the database is reachable again after" in log)
            later = server.log.count("was forked") + server.log.count("was spawned")
            assert later - looks <= 2
            server.until(server.is_ready)


@contextmanager
def forwarding(port: int, path: str) -> Iterator[None]:
    """What is sent to the port goes to the socket at `path`, and back."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                behind = socket.socket(socket.AF_UNIX)
                behind.connect(path)
                ends_of_all.extend((client, behind))
                for ends in ((client, behind), (behind, client)):
                    threading.Thread(target=copy, args=ends, daemon=True).start()

    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        ends_of_all: list[socket.socket] = []
        threading.Thread(target=serve, daemon=True).start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        for end in ends_of_all:
            end.close()


# --- later starts --------------------------------------------------------------------------------


def test_a_reload_that_fails_is_retried_with_a_line_each_until_it_is_mended(tmp_path: Path) -> None:
    write(tmp_path, {"probe.py": GOOD})
    with started(tmp_path, "serve", "probe.py") as server:
        server.until(server.is_ready)
        before = len(server.log.splitlines())
        write(tmp_path, {"probe.py": "import os\nmissing\n"})
        server.process.send_signal(signal.SIGUSR2)
        server.until(lambda log: log.count("retrying") >= 4)
        lines = [line for line in server.log.splitlines()[before:] if "failed to start" in line]
        assert all("NameError: name 'missing' is not defined (probe.py:2)" in e for e in lines)
        assert "Traceback" not in server.log
        between = server.log.partition(lines[0])[2].partition(lines[-1])[0].splitlines()
        assert len(between) <= len(lines), "nothing else is said between two attempts"
        write(tmp_path, {"probe.py": GOOD})
        server.until(server.is_ready)


def is_watching(pid: int) -> bool:
    """Whether a child of this process has begun to watch files; what changes earlier, nobody sees."""
    watching = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):
            files = Path(f"/proc/{child}/fdinfo").iterdir()
            watching += [each for each in files if "inotify wd:" in each.read_text()]
    return bool(watching)


def test_dev_says_what_is_wrong_waits_and_comes_up_once_it_is_mended(tmp_path: Path) -> None:
    write(tmp_path, {"probe.py": "x = 1\ny = x +\n"})
    with started(tmp_path, "dev", "probe.py") as dev:
        dev.until(lambda log: "Waiting for a change…" in log)
        (line,) = dev.log.splitlines()
        assert "cannot import probe.py: SyntaxError: invalid syntax (probe.py:2)" in line
        dev.until(lambda _: is_watching(dev.process.pid))
        write(tmp_path, {"probe.py": "import sys\nsys.exit(3)\n"})
        dev.until(lambda log: "SystemExit: 3 (probe.py:2)" in log)
        write(tmp_path, {"probe.py": GOOD})
        dev.until(dev.is_ready)
        assert "Traceback" not in dev.log
        (tmp_path / "probe.py").rename(tmp_path / "away.py")
        dev.until(lambda log: "file probe.py not found" in log)
        (tmp_path / "away.py").rename(tmp_path / "probe.py")
        dev.until(lambda log: log.count("reloaded") >= 1)
        dev.until(dev.is_ready)


@pytest.mark.parametrize("options", [["nothing.py"], [], ["probe.py", "--no-reload"]])
def test_dev_does_not_wait_for_what_no_change_brings(tmp_path: Path, options: list[str]) -> None:
    write(tmp_path, {"probe.py": "missing\n"})
    (line,) = refused(tmp_path, "dev", *options)
    assert "Waiting" not in line


# --- decisions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "was_ever_ready", "watches", "expected"),
    [
        ("code", False, False, "stop"),
        ("code", True, False, "again"),
        ("code", False, True, "wait"),
        ("code", True, True, "wait"),
        ("target", False, True, "stop"),
        ("target", True, True, "wait"),
        ("store", False, True, "stop"),
        ("store", True, True, "again"),
        ("store", False, False, "stop"),
        ("passing", False, False, "again"),
        ("passing", False, True, "again"),
    ],
)
def test_the_next_step(kind: Kind, was_ever_ready: bool, watches: bool, expected: Next) -> None:
    failure = Failure(kind, "…")
    assert next_step(failure, was_ever_ready=was_ever_ready, watches=watches) == expected


def caused(error: StoreError, cause: BaseException) -> StoreError:
    error.__cause__ = cause
    return error


class Refusal(Exception):
    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreLocked("held"), False),
        (StoreCorrupt("broken"), False),
        (StoreUnavailable("no such folder"), False),
        (caused(StoreUnavailable("away"), ConnectionRefusedError()), True),
        (caused(StoreUnavailable("slow"), TimeoutError()), True),
        (caused(StoreUnavailable("starting"), Refusal("57P03")), True),
        (caused(StoreUnavailable("full"), Refusal("53300")), True),
        (caused(StoreUnavailable("password"), Refusal("28P01")), False),
        (caused(StoreUnavailable("database"), Refusal("3D000")), False),
        (caused(StoreUnavailable("file"), sqlite3.OperationalError()), False),
    ],
)
def test_which_stores_may_come_back_by_themselves(error: StoreError, expected: bool) -> None:
    assert is_passing(error) is expected
    assert failure_of(error, "start").kind == ("passing" if expected else "store")


def test_a_failure_is_one_line_and_survives_the_lifeline() -> None:
    failure = failure_of(ValueError("one\n  two\n" + "x" * 9000), "import a.py")
    assert failure.text.startswith("cannot import a.py: ValueError: one two xxx")
    assert len(failure.text) < 3000
    assert Failure.decode(failure.encode()) == failure
    assert Failure.decode(failure.encode()[:-5]) is None
    assert failure_of(InvalidTarget("no"), "import a.py").kind == "target"
    assert failure_of(CannotLoad("no"), "import a.py").kind == "code"
    assert os.linesep not in failure.text
