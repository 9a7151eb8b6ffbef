"""The work of a worker: it loads the application and serves it on inherited sockets."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from outlast.cli.load.load import CannotLoad, InvalidTarget, load
from outlast.cli.models import problems_of
from outlast.cli.serving import announce, terminal
from outlast.cli.serving.access import apply_access, keep_token
from outlast.cli.serving.failures import Failure, failure_of
from outlast.cli.serving.imports import reduced_gc
from outlast.cli.serving.processes import FAILED, READY, SERVED, UPGRADE
from outlast.cli.serving.settings import NO_MEMORY, REFUSED, Settings, workers_problem
from outlast.cli.serving.sockets import CannotListen, listen

if TYPE_CHECKING:
    from outlast.server.uvicorn_server import Server

USAGE = 2  # exit status of the command: nothing can be served with these options
STARTUP_FAILED = 3  # exit status, the same as uvicorn's
LEAVE_WITHIN = 5.0  # seconds for threads and exit handlers after serving ended


class Failed(Exception):
    """The application failed to start."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


def work(
    settings: Settings,
    sockets: list[socket.socket],
    lifeline: socket.socket,
    application: Any = None,
) -> int:
    """Serve until this process or its supervisor ends. Returns the exit status.

    `application` is given if the supervisor loaded it.
    """
    signal.signal(
        signal.SIGHUP, _ignored
    )  # the supervisor handles reloads; children get the default
    _stop_with(lifeline, settings.drain)
    try:
        if application is None:
            with reduced_gc():
                application = load_application(settings)
        warnings = _apply_access(settings, application, sockets)
        if settings.dev:
            announce.prepare(application, settings)
        announce.print_lines([*warnings, *announce.access_lines(application, settings)])
        _warn_of_models(application)
        application.on_upgrade = lambda: _say(lifeline, UPGRADE)
        code = run(settings, application, sockets, lifeline)
    except Failed as error:
        _say(lifeline, FAILED + error.failure.encode())
        code = STARTUP_FAILED if error.failure.kind == "passing" else REFUSED
    except MemoryError:
        code = NO_MEMORY
    _end_within(LEAVE_WITHIN, code)
    return code


def serve_alone(settings: Settings) -> int:
    """Serve without a supervisor, on a new socket. Returns the exit status."""
    terminal.stop_on_hangup()
    keep_token()
    with reduced_gc():
        application = load_application(settings)
    sockets = listen(settings.host, settings.port)
    warnings = _apply_access(settings, application, sockets)
    announce.print_lines([*warnings, *announce.access_lines(application, settings)])
    _warn_of_models(application)
    return run(settings, application, sockets, None)


def load_application(settings: Settings) -> Any:
    """Load the application of the command line; `Failed` if that fails, whatever its module does."""
    try:
        application = load(settings.target, settings.store)
        why = workers_problem(settings.workers, application.store)
        if why is not None:
            raise InvalidTarget(why)
        return application
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # including sys.exit() in a module
        raise _failed(error, f"import {settings.target}", settings) from error


def _apply_access(settings: Settings, application: Any, sockets: list[socket.socket]) -> list[str]:
    """Apply the access options and return the warnings to print; `Failed` if they are not allowed."""
    try:
        return apply_access(settings, application, sockets)
    except InvalidTarget as error:
        raise _failed(error, "start", settings) from error


def _failed(error: BaseException, doing: str, settings: Settings) -> Failed:
    if settings.log_level in ("debug", "trace"):
        traceback.print_exception(error)
    return Failed(failure_of(error, doing))


def _warn_of_models(application: Any) -> None:
    """Warn of missing packages and keys of models now, rather than in the first turn."""
    for name, kind in application.host.classes.items():
        for problem in problems_of(getattr(kind, "model", None)):
            complain(f"{name}: {problem}")


def run(
    settings: Settings,
    application: Any,
    sockets: list[socket.socket],
    lifeline: socket.socket | None,
) -> int:
    """Serve until asked to stop. Returns the exit status; `Failed` if the start failed."""
    show_log(settings.log_level)
    errors: list[Exception] = []
    application.on_failed_start = errors.append
    server = _server(settings, application, lifeline)
    code = 0
    try:
        server.run(sockets)
    except SystemExit as error:  # uvicorn reports a failed start this way
        code = error.code if isinstance(error.code, int) else STARTUP_FAILED
    if errors:
        raise _failed(errors[0], "start", settings)
    return code if server.started else code or STARTUP_FAILED


def exit_status(serve: Callable[[], int]) -> int:
    """Serve; if the start fails, print one line. Returns the exit status of the command."""
    try:
        return serve()
    except (Failed, CannotLoad, CannotListen) as error:
        complain(str(error))
        return USAGE


def show_log(level: str) -> None:
    """Write outlast's log to stderr in uvicorn's format, unless the application configured logging."""
    ours = logging.getLogger("outlast")
    if ours.handlers or logging.getLogger().handlers:
        return
    from uvicorn.logging import DefaultFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(DefaultFormatter("%(levelprefix)s %(message)s"))
    ours.addHandler(handler)
    ours.setLevel(logging.getLevelNamesMapping().get(level.upper(), logging.DEBUG))


def complain(text: str) -> None:
    """Print an error."""
    typer.secho(f"outlast: {text}", err=True, fg=typer.colors.RED)


def _server(settings: Settings, application: Any, lifeline: socket.socket | None = None) -> Server:
    from outlast.server.uvicorn_server import Server

    application.host.admin = True
    application.host.server = settings.server
    return Server(
        application,
        drain=settings.drain,
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level,
        on_ready=None if lifeline is None else lambda: _say(lifeline, READY),
        on_served=None if lifeline is None else lambda: _say(lifeline, SERVED),
    )


def _say(lifeline: socket.socket, what: bytes) -> None:
    with contextlib.suppress(OSError):  # the supervisor died, which this process is about to notice
        lifeline.send(what, socket.MSG_DONTWAIT)


def _stop_with(lifeline: socket.socket, drain: float) -> None:
    """Stop when the supervisor dies. Uses a thread, because the loop may be busy or not running yet."""

    def watch() -> None:
        with contextlib.suppress(OSError):  # a killed supervisor leaves unread data
            while lifeline.recv(1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(drain)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="outlast-lifeline", daemon=True).start()


def _end_within(seconds: float, code: int) -> None:
    """End the process even if a thread still runs: it serves nothing any more."""

    def end() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=end, name="outlast-end", daemon=True).start()


def _ignored(*_: object) -> None:
    pass


def main(arguments: list[str]) -> int:
    """Run a spawned worker: its settings, and the numbers of its lifeline and sockets."""
    settings, *numbers = arguments
    lifeline, *sockets = (socket.socket(fileno=int(number)) for number in numbers)
    for each in (lifeline, *sockets):
        each.set_inheritable(False)
    return work(Settings.decode(settings), sockets, lifeline)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
