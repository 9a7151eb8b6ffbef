"""Real processes that are really killed."""

from __future__ import annotations

import inspect
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outlast.core.clock import seconds


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended."""

    killed: bool
    output: str


class WorkerFailed(AssertionError):
    """The worker ended by itself, with an error. Its output is in the message."""


class Worker:
    """Runs `drive` in a process of its own, again and again, on one store.

    `agents` and `drive` must be importable from a file: classes and an async function at the top of a
    module, which is not the script that is run (`__main__`). `drive(host, *arguments)` is called with a
    running host; the worker ends when it has returned and the host has settled. See `docs/testing.md` for a
    whole test.
    """

    def __init__(
        self,
        *,
        agents: Sequence[type[Any]],
        drive: Callable[..., Any],
        store: str,
        arguments: Sequence[Any] = (),
    ) -> None:
        self._order = {
            "agents": [_reference(agent) for agent in agents],
            "drive": _reference(drive),
            "store": store,
            "arguments": list(arguments),
        }
        self._process: subprocess.Popen[str] | None = None

    def run(
        self,
        *,
        kill_after: float | timedelta | None = None,
        kill_at: str | None = None,
        timeout: float | timedelta = 60.0,
    ) -> Exit:
        """Start the worker and wait for its end.

        `kill_after`: SIGKILL this long after its host has started. `kill_at`: SIGKILL at a named
        point, "before commit 3" or "after commit 3". Neither: it is left to finish. Raises
        `WorkerFailed` when it ends with an error, or not within `timeout`. Both in seconds or as `timedelta`.
        """
        patience = min(seconds(timeout, "timeout"), threading.TIMEOUT_MAX)
        delay = None if kill_after is None else seconds(kill_after, "kill_after")
        order = {**self._order, "kill_at": _point(kill_at)}
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "outlast.testing.worker", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines: list[str] = []
        ready = threading.Event()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                ready.set()
            ready.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            if delay is not None:
                ready.wait(patience)
                time.sleep(delay)
                process.kill()
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise WorkerFailed(
                f"the worker did not end within {patience:g} s:\n{''.join(lines)}"
            ) from None
        finally:
            reader.join(patience)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        output = "".join(lines)
        killed = code == -signal.SIGKILL
        if code and not killed:
            raise WorkerFailed(f"the worker ended with exit code {code}:\n{output}")
        return Exit(killed, output)

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _reference(thing: Any) -> str:
    if thing.__module__ == "__main__":
        raise ValueError(
            f"{thing.__qualname__} is defined in __main__, which the worker cannot import: there,"
            f" __main__ is the worker itself. Move it into a module of its own, and import it from there"
        )
    if "<" in thing.__qualname__:
        raise ValueError(
            f"{thing.__qualname__} cannot be imported by another process; define it at the top of a module"
        )
    return f"{inspect.getfile(thing)}::{thing.__module__}::{thing.__qualname__}"


def _point(text: str | None) -> list[Any] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(before|after) commit (\d+)", text)
    if match is None:
        raise ValueError(f"kill_at is 'before commit N' or 'after commit N', not {text!r}")
    return [match[1], int(match[2])]
