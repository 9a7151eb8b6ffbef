"""Processes that a job starts and talks to: servers, for as long as it measures them."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT = 60.0


def free_port() -> int:
    """A port nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def request(url: str, body: object = None) -> bytes:
    """The answer to a GET, or to a POST of JSON."""
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"content-type": "application/json"}
    asked = urllib.request.Request(url, data=data, headers=headers)
    with urllib.request.urlopen(asked, timeout=300) as answer:
        return bytes(answer.read())


def request_when_ready(url: str, body: object = None) -> bytes:
    """The same, tried again until the other side is up."""
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            return request(url, body)
        except OSError as error:  # URLError and HTTPError are OSErrors
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} did not answer in {START_TIMEOUT:.0f} s") from error
            time.sleep(0.1)


@contextlib.contextmanager
def process(command: list[str], env: dict[str, str], log: str) -> Iterator[int]:
    """A process that lives as long as the block; yields its id."""
    with open(log, "ab") as output:
        started = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        yield started.pid
    finally:
        started.kill()
        started.wait()
