"""Runs an `App` in uvicorn, and stops it in the right order."""

from __future__ import annotations

import gc
import logging
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import uvicorn

from outlast.core.clock import seconds
from outlast.server.app import App
from outlast.server.first_response import FirstResponse
from outlast.server.http import deadlines
from outlast.server.socket.batching import protocol

HAND_OVER = 0.2  # the fraction of the shutdown time that is reserved for handing over
AT_MOST = 2.0  # upper limit of that time, in seconds
LOGGERS = ("uvicorn.access", "uvicorn.error")  # the second one logs WebSockets
# uvicorn's messages about a failed start, which the command line reports in one line.
_NOISE = (
    "Started server process [%d]",
    "Waiting for application startup.",
    "Application startup failed. Exiting.",
)


def time_for_work(drain: float) -> float:
    """Return the seconds that running work may take, when the shutdown must end after `drain` seconds."""
    return drain - min(AT_MOST, drain * HAND_OVER)


class Server(uvicorn.Server):
    """Serves an application until it is asked to stop, and stops within `drain` seconds.

    First, running work records why it is interrupted. Then event streams end, requests finish, turns and
    fibers get the remaining time, and the next process resumes the rest.
    """

    def __init__(
        self,
        application: App,
        *,
        drain: float | timedelta = 10.0,
        host: str = "127.0.0.1",
        port: int = 8000,
        log_level: str = "info",
        on_ready: Callable[[], None] | None = None,
        on_served: Callable[[], None] | None = None,
    ) -> None:
        config = uvicorn.Config(
            application if on_served is None else FirstResponse(application, on_served),
            host=host,
            port=port,
            log_level=log_level,
            lifespan="on",
            http=deadlines.protocol(seconds(application.limits.headers_within)),
            ws=protocol(),
            ws_max_size=application.limits.frame,
            ws_per_message_deflate=False,  # a frame is serialized once for all connections
        )
        super().__init__(config)
        for name in LOGGERS:
            logging.getLogger(name).addFilter(without_queries)
        self._application = application
        self._on_ready = on_ready
        self._time_for_work = time_for_work(seconds(drain, "drain"))
        config.timeout_graceful_shutdown = self._time_for_work / 2  # type: ignore[assignment]

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until asked to stop."""
        is_reported = self._application.on_failed_start is not None
        with _without(*_NOISE) if is_reported else nullcontext():
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the host, then accept connections."""
        await super().startup(sockets)
        if not self.started:
            return
        # Imported modules stay: exclude them from garbage collection, whose passes over them would delay
        # frames. A collection now would delay waiting clients and find almost nothing.
        gc.freeze()
        if self._on_ready is not None:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop in the order that the class describes."""
        await self._application.leave(self._time_for_work)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on SIGTERM and SIGINT. Unlike uvicorn, do not re-raise the signal afterwards."""
        handled = (signal.SIGTERM, signal.SIGINT)
        before = {each: signal.signal(each, self.handle_exit) for each in handled}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def without_queries(record: logging.LogRecord) -> bool:
    """A logging filter that removes query strings from request lines: they may contain a token."""
    if isinstance(record.args, tuple):
        record.args = tuple(_without_query(each) for each in record.args)
    return True


def _without_query(argument: object) -> object:
    if isinstance(argument, str) and argument.startswith(("/", "http://", "https://")):
        path, mark, _ = argument.partition("?")
        return f"{path}{mark}…" if mark else path
    return argument


@contextmanager
def _without(*messages: str) -> Generator[None, None, None]:
    """Suppress these messages in uvicorn's log."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return record.msg not in messages

    logger = logging.getLogger("uvicorn.error")
    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(is_wanted)
