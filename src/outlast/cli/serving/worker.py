"""What a worker does: load the application and serve it, on sockets that are somebody else's."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import typer

from outlast.cli.loading import CannotLoad, load
from outlast.cli.models import problems_of
from outlast.cli.serving import developing
from outlast.cli.serving.imports import kept
from outlast.cli.serving.processes import READY, UPGRADE
from outlast.cli.serving.settings import NO_MEMORY, REFUSED, Settings, refusal

if TYPE_CHECKING:
    from outlast.server.serving import Server

STARTUP_FAILED = 3  # an exit status, as uvicorn has it
LEAVE_WITHIN = 5.0  # seconds, once nothing is served any more, for threads and exit handlers


def work(
    settings: Settings,
    sockets: list[socket.socket],
    lifeline: socket.socket,
    application: Any = None,
) -> int:
    """Serve until this process, or its supervisor, is to end. The exit status.

    `application` is loaded already when the supervisor has done so.
    """
    signal.signal(signal.SIGHUP, _ignored)  # a reload is the supervisor's; children get the default
    _stop_with(lifeline, settings.drain)
    try:
        if application is None:
            with kept():
                application = load(settings.target, settings.store)
        why = refusal(settings.workers, application.store)
        if why is not None:
            raise CannotLoad(why)
        if settings.dev:
            developing.prepare(application, settings)
        _warn_of_models(application)
        application.on_upgrade = lambda: _say(lifeline, UPGRADE)
        code = run(_server(settings, application, lambda: _say(lifeline, READY)), sockets)
    except CannotLoad as error:
        complain(str(error))
        code = REFUSED
    except MemoryError:
        code = NO_MEMORY
    except Exception as error:
        if not settings.dev:
            raise
        developing.show(error)
        code = REFUSED
    _end_within(LEAVE_WITHIN, code)
    return code


def alone(settings: Settings) -> int:
    """Serve without a supervisor, on a socket of its own. The exit status."""
    with kept():
        application = load(settings.target, settings.store)
        server = _server(settings, application)
    _warn_of_models(application)
    return run(server, None)


def _warn_of_models(application: Any) -> None:
    """What is missing for a model is better known now than with the first turn."""
    for name, kind in application.host.classes.items():
        for problem in problems_of(getattr(kind, "model", None)):
            complain(f"{name}: {problem}")


def run(server: Server, sockets: list[socket.socket] | None) -> int:
    """Serve until somebody asks to stop."""
    try:
        server.run(sockets)
    except SystemExit as error:  # how uvicorn tells that it could not start
        return error.code if isinstance(error.code, int) else STARTUP_FAILED
    return 0 if server.started else STARTUP_FAILED


def complain(text: str) -> None:
    """Tell whoever started it what is wrong."""
    typer.secho(f"outlast: {text}", err=True, fg=typer.colors.RED)


def _server(settings: Settings, application: Any, on_ready: Any = None) -> Server:
    from outlast.server.serving import Server

    application.host.admin = True
    return Server(
        application,
        drain=settings.drain,
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level,
        on_ready=on_ready,
    )


def _say(lifeline: socket.socket, what: bytes) -> None:
    with contextlib.suppress(OSError):  # a supervisor that has died: this process is about to see
        lifeline.send(what, socket.MSG_DONTWAIT)


def _stop_with(lifeline: socket.socket, drain: float) -> None:
    """Stop when the supervisor dies. A thread: the loop may be busy, or not there yet."""

    def watch() -> None:
        with contextlib.suppress(OSError):  # a supervisor that was killed has not read everything
            while lifeline.recv(1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(drain)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="outlast-lifeline", daemon=True).start()


def _end_within(seconds: float, code: int) -> None:
    """Whatever thread still runs must not keep a process that serves nothing."""

    def end() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=end, name="outlast-end", daemon=True).start()


def _ignored(*_: object) -> None:
    pass


def main(arguments: list[str]) -> int:
    """A worker that was spawned: its settings, and the numbers of its lifeline and sockets."""
    settings, *numbers = arguments
    lifeline, *sockets = (socket.socket(fileno=int(number)) for number in numbers)
    for each in (lifeline, *sockets):
        each.set_inheritable(False)
    return work(Settings.decode(settings), sockets, lifeline)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
