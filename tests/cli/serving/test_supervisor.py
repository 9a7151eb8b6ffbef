"""`outlast serve` and its workers: real processes, really killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import forked

LONG = 30.0  # seconds, for a machine that is busy
SOON = 5.0
FIXTURE = Path(__file__).parents[2] / "conformance" / "fixture_agent.py"

APP = """
import asyncio, os, subprocess, threading, time
from starlette.responses import JSONResponse
from outlast import Agent, App

class Probe(Agent):
    async def on_request(self, request):
        what = request.url.path.rpartition("/")[2]
        about = {"pid": os.getpid(), "cause": app.host.cause, "imported_by": IMPORTED_BY}
        about["threads"] = threading.active_count()
        match what:
            case "exit":
                os._exit(7)
            case "child":
                about["child"] = subprocess.Popen(["sleep", "1000"]).pid
            case "hang":
                asyncio.get_running_loop().call_later(0.05, time.sleep, 1000)
        return JSONResponse(about)

IMPORTED_BY = os.getpid()
app = App(agents=[Probe], store="sqlite:///probe.db")
"""


class Supervised:
    """`outlast serve`, and whoever answers."""

    def __init__(self, folder: Path, *options: str, app: str = APP, target: str = "probe.py:app"):
        self.folder = folder
        (folder / "probe.py").write_text(dedent(app))
        self.port = free_port()
        command = ["-m", "outlast.cli.main", "serve", target]
        command += ["--port", str(self.port), *options]
        with (folder / "log").open("ab") as log:
            self.process = forked.start(  # without a terminal: there SIGHUP is a reload
                *command, stdout=log, stderr=log, cwd=folder, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def children(self) -> list[int]:
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(each) for each in text.split()]

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ask(self, what: str = "about") -> dict[str, Any]:
        status, body = self.get(f"/agents/probe/a/{what}")
        assert status == 200, (body, self.log)
        found: dict[str, Any] = json.loads(body)
        return found

    def ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log
            try:
                return self.get("/readyz")[0] == 200
            except OSError:
                return False

        until(is_ready)

    def other_than(self, pid: int) -> dict[str, Any]:
        """What the worker says that has come after this one."""
        found: dict[str, Any] = {}

        def is_another() -> bool:
            nonlocal found
            try:
                found = self.ask()
            except (OSError, http.client.HTTPException):  # accepted by the one that dies
                return False
            return bool(found["pid"] != pid)

        until(is_another)
        return found

    def end(self, how: int) -> int:
        self.process.send_signal(how)
        return self.process.wait(LONG)


@contextmanager
def supervised(folder: Path, *options: str, **more: Any) -> Iterator[Supervised]:
    made = Supervised(folder, *options, **more)
    try:
        made.ready()
        yield made
    finally:
        if made.process.poll() is None:
            made.process.send_signal(signal.SIGINT)
            made.process.send_signal(signal.SIGTERM)
            try:
                made.process.wait(15)
            except subprocess.TimeoutExpired:
                made.process.kill()
                made.process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def until(condition: Callable[[], bool], within: float = LONG) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# --- upgrades ----------------------------------------------------------------------------------------

VERSIONS = """
from pathlib import Path
from outlast import App, Think
from outlast.testing import ScriptedModel

NEWEST = Path("version")
VERSION = NEWEST.read_text()

class Talker(Think):
    model = ScriptedModel(f"I am version {VERSION}.")

    async def before_turn(self, context):
        if NEWEST.read_text() != VERSION:
            await self.request_upgrade()

    async def on_chat_recovery(self, context):
        Path("recovered").touch()

app = App(agents=[Talker], store="sqlite:///talker.db")
"""


@pytest.mark.invariant("H23")
def test_an_agent_can_have_itself_replaced_by_a_newer_version(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("1")
    with supervised(tmp_path, app=VERSIONS) as server:
        where = "/agents/talker/a"

        def answer(question: str) -> str:
            body = {"messages": [{"role": "user", "parts": [{"type": "text", "text": question}]}]}
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONG)
            connection.request("POST", f"{where}/submissions", json.dumps(body))
            accepted = connection.getresponse()
            assert accepted.status == 202, (accepted.read(), server.log)
            connection.close()
            messages: list[Any] = []

            def is_answered() -> bool:
                nonlocal messages
                try:
                    status, found = server.get(f"{where}/get-messages")
                except (OSError, http.client.HTTPException):  # accepted by the one that leaves
                    return False
                messages = json.loads(found) if status == 200 else []
                said = [part.get("text") for each in messages for part in each["parts"]]
                return question in said and messages[-1]["role"] == "assistant"

            until(is_answered)
            return str(messages[-1]["parts"][-1]["text"])

        assert answer("Who are you?") == "I am version 1."
        (tmp_path / "version").write_text("2")
        assert answer("And now?") == "I am version 2."
        assert "an agent requested newer code" in server.log
        assert "has died" not in server.log
        assert not (tmp_path / "recovered").exists(), "it was no interruption"


# --- deaths ----------------------------------------------------------------------------------------


def test_nobody_is_refused_while_workers_are_killed_and_replaced(tmp_path: Path) -> None:
    refused: list[str] = []
    made = 0
    over = threading.Event()
    with supervised(tmp_path, "--log-level", "debug") as server:
        until(lambda: "everything is loaded" in server.log)  # a death does not interrupt an import

        def connect() -> None:
            nonlocal made
            while not over.is_set():
                try:
                    with socket.create_connection(("127.0.0.1", server.port), LONG):
                        made += 1
                except OSError as error:
                    refused.append(repr(error))
                time.sleep(0.002)

        connecting = threading.Thread(target=connect)
        connecting.start()
        try:
            about = server.ask()
            assert about["cause"] is None
            for _ in range(6):
                os.kill(about["pid"], signal.SIGKILL)
                about = server.other_than(about["pid"])
                assert about["cause"] == "crashed"
        finally:
            over.set()
            connecting.join()
        assert refused == []
        assert made > 10
        assert "was killed by SIGKILL after" in server.log
        assert server.log.count("starting another (cause: crashed)") == 6
        assert "starting another in" not in server.log, "each had served something"


DOOMED = (
    """
import contextlib, sys, urllib.request
"""
    + APP
    + """
class Doomed(App):
    @contextlib.asynccontextmanager
    async def lifespan(self, _=None):
        async with super().lifespan():
            if os.path.exists("doomed"):
                threading.Thread(target=die).start()
            yield

def die():  # as soon as it answers
    port = sys.argv[sys.argv.index("--port") + 1]
    urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz").close()
    os._exit(9)

app = Doomed(agents=[Probe], store="sqlite:///probe.db")
"""
)


def test_workers_that_die_before_they_serve_anything_are_started_later_and_later(
    tmp_path: Path,
) -> None:
    with supervised(tmp_path, app=DOOMED) as server:
        first = server.ask()
        (tmp_path / "doomed").touch()
        os.kill(first["pid"], signal.SIGKILL)
        until(lambda: "starting another in 0.5 s (cause: crashed)" in server.log)
        assert server.log.count("starting another (cause: crashed)") == 3
        assert server.log.count("starting another in 0.2 s (cause: crashed)") == 1
        (tmp_path / "doomed").unlink()
        assert server.other_than(first["pid"])["cause"] == "crashed"


def test_the_next_worker_is_told_why_the_last_one_ended(tmp_path: Path) -> None:
    with supervised(tmp_path) as server:
        first = server.ask()
        with pytest.raises((OSError, http.client.HTTPException)):
            server.ask("exit")
        second = server.other_than(first["pid"])
        assert second["cause"] == "crashed"
        assert "ended with exit status 7" in server.log
        os.kill(second["pid"], signal.SIGTERM)
        third = server.other_than(second["pid"])
        assert third["cause"] == "deploy"
        # and a reload, which reads the module again
        (tmp_path / "probe.py").write_text(APP.replace("about = {", 'about = {"new": True, '))
        server.process.send_signal(signal.SIGHUP)
        fourth = server.other_than(third["pid"])
        assert fourth["cause"] == "deploy"
        assert fourth["new"]
        assert not is_alive(third["pid"])
        assert server.end(signal.SIGTERM) == 0


def test_a_cause_is_kept_until_a_worker_could_take_it(tmp_path: Path) -> None:
    with supervised(tmp_path) as server:
        first = server.ask()
        (tmp_path / "probe.py").write_text("import os, signal; os._exit(9)")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "ended with exit status 9" in server.log)
        (tmp_path / "probe.py").write_text(APP)
        assert server.other_than(first["pid"])["cause"] == "deploy"


# --- the end ---------------------------------------------------------------------------------------


def test_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    with supervised(tmp_path) as server:
        about = server.ask("child")
        assert about["pid"] != server.pid
        assert is_alive(about["child"])
        began = time.monotonic()
        assert server.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < SOON
        assert not is_alive(about["pid"])
        until(lambda: not is_alive(about["child"]), SOON)
        with pytest.raises(ConnectionRefusedError):
            server.get("/healthz")
        assert "Traceback" not in server.log


def test_a_worker_that_does_not_drain_is_killed(tmp_path: Path) -> None:
    with supervised(tmp_path, "--drain", "0.5") as server:
        about = server.ask("hang")
        time.sleep(0.2)
        began = time.monotonic()
        assert server.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < SOON
        assert not is_alive(about["pid"])
        assert f"worker {about['pid']} did not stop in time" in server.log


def test_a_second_interrupt_kills_at_once(tmp_path: Path) -> None:
    with supervised(tmp_path, "--drain", "1000") as server:
        about = server.ask("hang")
        time.sleep(0.2)
        server.process.send_signal(signal.SIGINT)
        until(lambda: "stopping" in server.log)
        assert server.process.poll() is None
        assert server.end(signal.SIGINT) == 0
        assert not is_alive(about["pid"])


@pytest.mark.parametrize("what", ["about", "hang"])
def test_a_worker_stops_when_its_supervisor_is_killed(tmp_path: Path, what: str) -> None:
    with supervised(tmp_path, "--drain", "1") as server:
        about = server.ask(what)
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: not is_alive(about["pid"]), 10)


# --- how workers begin -----------------------------------------------------------------------------


def test_a_module_is_imported_by_the_worker_or_once_by_the_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path) as server:
        about = server.ask()
        assert about["imported_by"] == about["pid"]
    with supervised(tmp_path, "--preload") as server:
        about = server.ask()
        assert about["imported_by"] == server.pid != about["pid"]
        os.kill(about["pid"], signal.SIGKILL)
        again = server.other_than(about["pid"])
        assert again["imported_by"] == server.pid
        assert again["cause"] == "crashed"


def test_a_supervisor_with_threads_starts_fresh_processes(tmp_path: Path) -> None:
    app = APP + "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    with supervised(tmp_path, "--preload", app=app) as server:
        about = server.ask()
        assert about["imported_by"] == about["pid"] != server.pid
        until(lambda: "was spawned" in server.log)
        os.kill(about["pid"], signal.SIGKILL)
        again = server.other_than(about["pid"])
        assert again["cause"] == "crashed"
        assert server.end(signal.SIGTERM) == 0
        assert not is_alive(again["pid"])


def test_several_workers_share_postgresql_and_are_restarted_one_by_one(
    tmp_path: Path, postgres_url: str
) -> None:
    with supervised(tmp_path, "--workers", "2", "--store", postgres_url) as server:

        def workers() -> list[int]:
            text = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
            return [int(each) for each in text.split()]

        until(lambda: server.log.count("Application startup complete") == 2)
        one, other = workers()
        os.kill(one, signal.SIGKILL)
        until(lambda: len(workers()) == 2 and one not in workers())
        assert other in workers()
        assert server.get("/readyz")[0] == 200
        until(lambda: server.log.count("Application startup complete") == 3)
        left = workers()
        assert server.end(signal.SIGTERM) == 0
        assert not any(map(is_alive, left))


# --- what cannot be served ---------------------------------------------------------------------------


def refusal_of(folder: Path, *options: str) -> tuple[int, str]:
    (folder / "probe.py").write_text(APP)
    command = ["-m", "outlast.cli.main", "serve", "probe.py:app", *options]
    done = forked.run(*command, timeout=60, cwd=folder)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("options", [("--store", "sqlite:///other.db"), (), ("--preload",)])
def test_sqlite_belongs_to_one_worker(tmp_path: Path, options: tuple[str, ...]) -> None:
    port = str(free_port())
    code, said = refusal_of(tmp_path, "--workers", "2", "--port", port, *options)
    assert code == 2
    assert "only one process can open a SQLite file" in said
    assert not list(tmp_path.glob("*.db"))


def test_a_port_that_is_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = refusal_of(tmp_path, "--port", str(port))
    assert code == 2
    assert f"port {port} of 127.0.0.1 is in use" in said


# --- readers of event streams ------------------------------------------------------------------------


def test_a_reader_of_events_holds_up_no_stop_and_resumes_afterwards(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    options = {"target": str(FIXTURE), "app": ""}
    more = ("--drain", "2", "--log-level", "debug")
    with supervised(tmp_path, "--store", store, *more, **options) as server:
        until(lambda: "everything is loaded" in server.log)  # nor does a reload interrupt an import
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONG)
        said = {
            "role": "user",
            "id": "m1",
            "parts": [{"type": "text", "text": "say 999 words every 20ms"}],
        }
        headers = {"Idempotency-Key": "k1"}
        path = "/agents/fixture-agent/a/chat"
        connection.request("POST", path, json.dumps({"messages": [said]}), headers)
        answer = connection.getresponse()
        read = [b""]
        while b"text-delta" not in read[-1]:
            read.append(answer.readline())
        server.process.send_signal(signal.SIGHUP)
        began = time.monotonic()
        rest = answer.read()
        assert time.monotonic() - began < 1.5  # less than the worker has for its turn
        connection.close()
        assert b"[DONE]" not in rest
        lines = [*read, *rest.splitlines()]
        last = max(int(line[4:]) for line in lines if line.startswith(b"id: "))
        line = b""
        while not line:  # the old worker may have taken the connection, and ends it like the first
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONG)
            resume = {"Last-Event-ID": str(last)}
            connection.request("GET", f"{path}/k1/stream?requestId=k1", headers=resume)
            more = connection.getresponse()
            while (line := more.readline()) and not line.startswith(b"id: "):
                assert b"[DONE]" not in line
            connection.close()
            assert time.monotonic() - began < LONG
        assert int(line[4:]) == last + 1
