"""What `outlast serve` and `outlast dev` open to other machines, and how those who run them get in."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

import forked

LONG = 60.0  # seconds that anything may take on a machine with much to do
AGENT = """
from outlast import App, Think
from outlast.testing import ScriptedModel

class Talker(Think):
    model = ScriptedModel("Yes.", repeat=True)
"""
APPS = {
    "open.py": "",
    "known.py": "app = App([Talker], auth=lambda connection: connection.query_params.get('token'))\n",
    "insecure.py": "app = App([Talker], insecure=True)\n",
    "inspected.py": "app = App([Talker], inspector=True)\n",
}


class Started:
    """A command that serves, in a process of its own."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        for name, text in APPS.items():
            (folder / name).write_text(AGENT + text)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "log"
        command = ["-m", "outlast.cli.main", *arguments, "--port", str(self.port)]
        store = {"OUTLAST_STORE": f"sqlite:///{folder}/store.db"}
        kept = {name: text for name, text in os.environ.items() if name != "OUTLAST_TOKEN"}
        with self._log.open("wb") as log:
            self.process = forked.start(
                *command,
                cwd=folder,
                env={**kept, **store, **environment},
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def until(self, condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + LONG
        while not (found := condition()):
            assert time.monotonic() < end, f"waited in vain:\n{self.log}"
            assert self.process.poll() is None, self.log
            time.sleep(0.05)
        return found

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=LONG).status_code == 200
        except httpx.TransportError:
            return False

    def link(self, page: str) -> str:
        """The address with a token that was printed for a page."""
        found = self.until(lambda: re.search(rf"{re.escape(page)}\?token=\S+", self.log))
        return str(found[0])


@contextmanager
def started(folder: Path, *arguments: str, **environment: str) -> Iterator[Started]:
    running = Started(folder, *arguments, **environment)
    try:
        yield running
    finally:
        running.process.send_signal(signal.SIGINT)
        try:
            running.process.wait(LONG)
        finally:
            running.process.kill()
            running.process.wait()


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "open.py", "--host", "0.0.0.0", "--store", "sqlite:///serve.db"),
        ("serve", "open.py", "--host", "::", "--no-supervisor", "--store", "sqlite:///serve.db"),
        (
            "serve",
            "inspected.py",
            "--host",
            "0.0.0.0",
            "--preload",
            "--store",
            "sqlite:///serve.db",
        ),
        ("dev", "open.py", "--host", "0.0.0.0", "--no-reload"),
        ("dev", "inspected.py", "--host", "0.0.0.0"),
    ],
)
def test_without_auth_a_public_host_is_refused_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with started(tmp_path, *arguments) as command:
        assert command.process.wait(LONG) == 2, command.log
        (line,) = command.log.strip().splitlines()
        assert line.startswith(f"outlast: --host {arguments[3]} opens the agents to other machines")
        assert "set App(auth=…), or pass --insecure" in line


def test_with_auth_or_by_wish_a_public_host_is_served(tmp_path: Path) -> None:
    host = ("--host", "0.0.0.0", "--store", "sqlite:///serve.db", "--log-level", "warning")
    for target, more, status in (
        ("known.py", (), 401),
        ("insecure.py", (), 200),
        ("open.py", ("--insecure",), 200),
    ):
        with started(tmp_path, "serve", target, *host, *more) as command:
            command.until(command.is_ready)
            assert ("everyone who can reach" in command.log) is (status == 200)
            path = f"{command.url}/agents/talker/a/get-messages"
            elsewhere = {"host": "192.168.1.7"}
            assert httpx.get(path, headers=elsewhere, timeout=LONG).status_code == status


def test_dev_prints_where_it_listens_and_links_that_let_in(tmp_path: Path) -> None:
    with started(tmp_path, "dev", "open.py", "--no-reload") as command:
        command.until(command.is_ready)
        assert f"listening on 127.0.0.1, port {command.port}" in command.log
        link = command.link(f"{command.url}/inspect")
        assert command.link(f"{command.url}/").rpartition("=")[2] == link.rpartition("=")[2]
        with httpx.Client(base_url=command.url, timeout=LONG) as browser:
            agents = "/_outlast/inspect/agents"
            assert browser.get(agents).status_code == 401
            assert browser.get(link).headers["location"] == "/inspect"
            assert browser.get(agents).status_code == 200
            pid = browser.get("/_outlast/page").json()["pid"]
            with pytest.raises(httpx.TransportError):
                browser.post(f"/_outlast/kill?pid={pid}")
            command.until(command.is_ready)
            about = browser.get("/_outlast/page").json()
            assert about["pid"] not in (None, pid), "the next worker has the same token"
            assert browser.get(agents).status_code == 200
        assert len(re.findall(r"inspector: ", command.log)) == 1, "it is told once"


def test_serve_prints_the_link_of_an_inspector_and_takes_a_token_of_yours(tmp_path: Path) -> None:
    arguments = ("serve", "inspected.py", "--store", "sqlite:///serve.db", "--log-level", "info")
    token = "mine-and-nobody-else-s"
    with started(tmp_path, *arguments, OUTLAST_TOKEN=token) as command:
        command.until(command.is_ready)
        assert command.link(f"{command.url}/inspect").endswith(f"?token={token}")
    with started(tmp_path, *arguments, "--no-supervisor") as command:
        command.until(command.is_ready)
        assert token not in command.link(f"{command.url}/inspect")
    with started(tmp_path, *arguments, OUTLAST_TOKEN="short") as command:
        assert command.process.wait(LONG) == 2
        assert "outlast: OUTLAST_TOKEN must have at least 16 characters, got 5" in command.log


def test_tokens_in_a_query_do_not_reach_the_log(tmp_path: Path) -> None:
    from websockets.sync.client import connect

    arguments = ("serve", "known.py", "--store", "sqlite:///serve.db", "--log-level", "debug")
    with started(tmp_path, *arguments) as command:
        command.until(command.is_ready)
        path = "/agents/talker/hunter/get-messages"
        query = "token=hunter2&access_token=hunter2&x=hunter2"
        assert httpx.get(f"{command.url}{path}?{query}", timeout=LONG).status_code == 200
        assert httpx.get(f"{command.url}/nothing?{query}", timeout=LONG).status_code == 404
        url = command.url.replace("http", "ws")
        with connect(f"{url}/agents/talker/hunter?{query}") as socket:
            socket.recv(LONG)
        command.until(lambda: "WebSocket" in command.log)
        assert f'"GET {path}?… HTTP/1.1" 200' in command.log
        assert '"WebSocket /agents/talker/hunter?…" [accepted]' in command.log
        assert "hunter2" not in command.log
