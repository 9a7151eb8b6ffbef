"""What a worker does: load the application and serve it, on sockets that are somebody else's."""

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

from outlast.cli.load.load import CannotLoad, NoTarget, load
from outlast.cli.serving import developing, terminal
from outlast.cli.serving.doors import keep_token, open_doors
from outlast.cli.serving.failures import Failure, failure_of
from outlast.cli.serving.imports import kept
from outlast.cli.serving.listening import CannotListen, listen
from outlast.cli.serving.processes import FAILED, READY, SERVED, UPGRADE
from outlast.cli.serving.settings import NO_MEMORY, REFUSED, Settings, refusal
from outlast.cli.setup.models import problems_of

if TYPE_CHECKING:
    from outlast.server.serving import Server

USAGE = 2  # an exit status of the command: it cannot be served this way
STARTUP_FAILED = 3  # an exit status, as uvicorn has it
LEAVE_WITHIN = 5.0  # seconds, once nothing is served any more, for threads and exit handlers


class Failed(Exception):
    """The application could not start."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


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
                application = loaded(settings)
        warnings = opened(settings, application, sockets)
        if settings.dev:
            developing.prepare(application, settings)
        developing.tell([*warnings, *developing.how_to_get_in(application, settings)])
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


def alone(settings: Settings) -> int:
    """Serve without a supervisor, on a socket of its own. The exit status."""
    terminal.stop_on_hangup()
    keep_token()
    with kept():
        application = loaded(settings)
    sockets = listen(settings.host, settings.port)
    warnings = opened(settings, application, sockets)
    developing.tell([*warnings, *developing.how_to_get_in(application, settings)])
    _warn_of_models(application)
    return run(settings, application, sockets, None)


def loaded(settings: Settings) -> Any:
    """The application of the command line; `Failed` if it cannot be loaded, whatever its module does."""
    try:
        application = load(settings.target, settings.store)
        why = refusal(settings.workers, application.store)
        if why is not None:
            raise NoTarget(why)
        return application
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() in a module is one, too
        raise _failed(error, f"import {settings.target}", settings) from error


def opened(settings: Settings, application: Any, sockets: list[socket.socket]) -> list[str]:
    """Let in whom the command line allows, and return what to tell about it; `Failed` if it may not."""
    try:
        return open_doors(settings, application, sockets)
    except NoTarget as error:
        raise _failed(error, "start", settings) from error


def _failed(error: BaseException, doing: str, settings: Settings) -> Failed:
    if settings.log_level in ("debug", "trace"):
        traceback.print_exception(error)
    return Failed(failure_of(error, doing))


def _warn_of_models(application: Any) -> None:
    """What is missing for a model is better known now than with the first turn."""
    for name, kind in application.host.classes.items():
        for problem in problems_of(getattr(kind, "model", None)):
            complain(f"{name}: {problem}")


def run(
    settings: Settings,
    application: Any,
    sockets: list[socket.socket],
    lifeline: socket.socket | None,
) -> int:
    """Serve until somebody asks to stop. The exit status; `Failed` if it could not start."""
    show_log(settings.log_level)
    errors: list[Exception] = []
    application.on_failed_start = errors.append
    server = _server(settings, application, lifeline)
    code = 0
    try:
        server.run(sockets)
    except SystemExit as error:  # how uvicorn reports that it could not start
        code = error.code if isinstance(error.code, int) else STARTUP_FAILED
    if errors:
        raise _failed(errors[0], "start", settings)
    return code if server.started else code or STARTUP_FAILED


def exit_status(serve: Callable[[], int]) -> int:
    """Serve; if that cannot be started, say why in one line. The exit status of the command."""
    try:
        return serve()
    except (Failed, CannotLoad, CannotListen) as error:
        complain(str(error))
        return USAGE


def show_log(level: str) -> None:
    """Write what outlast logs to stderr, like uvicorn's lines, unless the application has set up logging."""
    ours = logging.getLogger("outlast")
    if ours.handlers or logging.getLogger().handlers:
        return
    from uvicorn.logging import DefaultFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(DefaultFormatter("%(levelprefix)s %(message)s"))
    ours.addHandler(handler)
    ours.setLevel(logging.getLevelNamesMapping().get(level.upper(), logging.DEBUG))


def complain(text: str) -> None:
    """Tell whoever started it what is wrong."""
    typer.secho(f"outlast: {text}", err=True, fg=typer.colors.RED)


def _server(settings: Settings, application: Any, lifeline: socket.socket | None = None) -> Server:
    from outlast.server.serving import Server

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
