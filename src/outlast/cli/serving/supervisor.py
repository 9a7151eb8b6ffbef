"""The supervisor: one thread that starts workers, and starts them again."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field, replace

from outlast.cli.load.load import NoTarget
from outlast.cli.serving import imports, processes
from outlast.cli.serving.deaths import Death, described, handed_on, wait_after
from outlast.cli.serving.doors import keep_token
from outlast.cli.serving.failures import Failure, next_step
from outlast.cli.serving.listening import listen, url
from outlast.cli.serving.memory import oom_kills
from outlast.cli.serving.processes import Born, End, Started
from outlast.cli.serving.settings import Settings, refusal
from outlast.cli.serving.terminal import Hangup, hangup_means
from outlast.cli.serving.worker import USAGE, loaded, work

REMEMBERED = 40  # deaths
LOCK_MARGIN = 2.0  # seconds beyond its time to drain that another server has to free the store
LOCK_PAUSE = 0.2  # seconds between two looks at whether it has
AWAY_PAUSE = 1.0  # seconds between two looks at whether the database has come back
TRY_AGAIN = 1.0  # seconds after which a process that could not be started is tried again
LOAD_AFTER = 10.0  # seconds after which a first worker that is not ready holds up nothing more
LEVELS = {"trace": 0, "debug": 1, "info": 2, "warning": 3, "error": 4, "critical": 5}


def supervise(settings: Settings, *, preload: bool = False) -> int:
    """Serve until somebody asks to stop. The exit status, of the supervisor or of a forked worker."""
    hangup = hangup_means()
    if settings.workers > 1:
        settings = replace(settings, server=secrets.token_hex())
    if settings.store is not None:
        _check(settings, settings.store)
    keep_token()
    sockets = listen(settings.host, settings.port)  # from here on connections wait
    application = None
    with imports.kept():
        for name in imports.AT_ONCE:
            imports.load(name)
        imports.load_prices()
        if preload:
            application = loaded(settings)
    imports.share_memory()
    outcome = Supervisor(settings, sockets, hangup).run()
    if isinstance(outcome, Born):
        return work(settings, sockets, outcome.lifeline, application)
    return outcome


def _check(settings: Settings, store: object) -> None:
    why = refusal(settings.workers, store)
    if why is not None:
        raise NoTarget(why)


@dataclass(slots=True)
class Place:
    """Where one worker follows another."""

    start_at: float | None  # None: one is there, or none is wanted
    last: End | None = None  # what the next worker is told, and the present one was
    worker: Started | None = None
    started_at: float = 0.0
    oom_kills: int | None = None  # the counter, when it was started
    kill_at: float | None = None  # it was asked to stop, and has until then
    ready_at: float | None = None  # when the worker has said so
    has_served: bool = False  # the worker has said so
    report: bytes | None = None  # why the worker could not start, as far as it was received
    is_silent: bool = False  # it has closed its end of the lifeline
    deaths: deque[Death] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def ask_to_stop(self, kill_at: float) -> None:
        """Within its time; asking again gives it no more."""
        if self.worker is not None and self.kill_at is None:
            self.kill_at = kill_at
            processes.ask_to_stop(self.worker.pid)


class _Stop(BaseException):
    """Out of an import that nobody needs any more."""


class Supervisor:
    """Keeps workers alive. Times are monotonic."""

    def __init__(
        self, settings: Settings, sockets: list[socket.socket], hangup: Hangup = "reload"
    ) -> None:
        self._settings = settings
        self._hangup = hangup
        self._was_ever_ready = False
        self._is_locked_out = False  # that was said
        self._away_since: float | None = None  # when the database could not be reached first
        self._away_for: set[str] = set()  # the reasons that were said since
        self._began = self._now()
        self._held: (
            list[str] | None
        ) = []  # lines about a start that may fail; None: they were written
        self._sockets = sockets
        self._places = [Place(start_at=0.0) for _ in range(settings.workers)]
        self._woken, self._waker = socket.socketpair()  # tells of signals
        self._result: int | None = None  # once it is stopping
        self._to_load = deque(imports.SOON)
        self._load_at: float | None = None
        self._is_loading = False

    def run(self) -> int | Born:
        """Until somebody asks to stop: the exit status. In a forked worker: its birth."""
        where = ", ".join(url(each) for each in self._sockets)
        self._say(f"serving on {where} (supervisor {os.getpid()}; Ctrl-C stops it)", level="info")
        self._listen_for_signals()
        while True:
            self._hear()
            self._listen()
            self._bury()
            if self._result is not None and not self._workers():
                if self._result == 0:
                    self._release()
                return self._result
            for place in self._places:
                born = self._start(place)
                if born is not None:
                    return born
            self._kill()
            self._load()
            self._wait()

    # --- signals ---------------------------------------------------------------------------------

    def _listen_for_signals(self) -> None:
        """Each becomes a byte, which ends the wait."""
        for each in (self._woken, self._waker):
            each.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in processes.SIGNALS:
            if number != signal.SIGHUP or self._hangup != "ignore":
                signal.signal(number, self._noted)

    def _noted(self, number: int, _: object) -> None:
        """Its byte is written by now. Whoever asks to stop does not wait for an import."""
        if self._is_loading and self._is_stop(number):
            self._is_loading = False
            raise _Stop

    def _hear(self) -> None:
        try:
            heard = self._woken.recv(4096)
        except BlockingIOError:
            return
        for number in heard:
            if number == signal.SIGINT and self._result is not None:
                for place in self._places:
                    place.kill_at = self._now()
            elif self._is_stop(number):
                self._stop(0)
            elif number in (signal.SIGHUP, processes.RELOAD) and self._result is None:
                self._reload()

    def _is_stop(self, number: int) -> bool:
        is_hangup = number == signal.SIGHUP and self._hangup == "stop"
        return is_hangup or number in (signal.SIGTERM, signal.SIGINT)

    def _stop(self, result: int, *, quietly: bool = False) -> None:
        """Let every worker drain, and start no more."""
        if self._result is None:
            self._result = result
            self._say("stopping", level="debug" if quietly else "info")
        for place in self._places:
            place.start_at = None
            place.ask_to_stop(self._now() + self._settings.drain)

    def _reload(self) -> None:
        """Let every worker drain, and start another in its place: what it holds must be free first."""
        self._say("reloading", level="info")
        for place in self._places:
            place.deaths.clear()
            if place.start_at is not None or place.worker is None:
                place.start_at = self._now()
            place.ask_to_stop(self._now() + self._settings.drain)

    # --- workers ---------------------------------------------------------------------------------

    def _workers(self) -> dict[int, Place]:
        return {place.worker.pid: place for place in self._places if place.worker is not None}

    def _start(self, place: Place) -> Born | None:
        """Start its next worker, if that is due."""
        if place.start_at is None or place.start_at > self._now():
            return None
        place.started_at = self._now()
        place.oom_kills = oom_kills()
        try:
            if imports.can_fork():
                others = [each.worker.lifeline for each in self._workers().values() if each.worker]
                started = processes.fork(place.last, [self._woken, self._waker, *others])
            else:
                started = processes.spawn(self._settings, place.last, self._sockets)
        except OSError as error:
            self._say(f"no worker could be started: {error}; trying again in {TRY_AGAIN:g} s")
            place.start_at = self._now() + TRY_AGAIN
            return None
        if isinstance(started, Born):
            return started
        was_failing = place.report is not None
        place.worker, place.start_at, place.kill_at = started, None, None
        place.ready_at, place.has_served, place.is_silent = None, False, False
        place.report = None
        if self._load_at is None:
            self._load_at = self._now() + LOAD_AFTER
        # After a failed start, the next line is the next failure, or that of a server that works again.
        level = "debug" if was_failing else "info"
        self._say(f"worker {started.pid} was {started.how}", level=level)
        return None

    def _listen(self) -> None:
        """What the workers say."""
        for place in self._places:
            said = self._said(place)
            if processes.UPGRADE in said and self._result is None and place.kill_at is None:
                self._say("an agent wants newer code", level="info")
                self._reload()

    def _said(self, place: Place) -> bytes:
        said = processes.heard(place.worker.lifeline) if place.worker is not None else b""
        place.is_silent = said is None
        codes, failed, report = (said or b"").partition(processes.FAILED)
        if place.report is not None:  # the rest of one that has begun
            codes, place.report = b"", place.report + (said or b"")
        elif failed:
            place.report = report
        if place.ready_at is None and processes.READY in codes:
            place.ready_at = self._now()
            self._was_ever_ready = True
            self._release()
            self._tell_back()
        place.has_served = place.has_served or processes.SERVED in codes
        return codes

    def _bury(self) -> None:
        """See who has ended, and when the next one starts."""
        workers = self._workers()
        for pid, code in processes.ended(workers):
            place = workers.get(pid)
            if place is not None:
                self._ended(place, pid, code)

    def _ended(self, place: Place, pid: int, code: int) -> None:
        assert place.worker is not None
        now, kills = self._now(), oom_kills()
        self._said(place)
        was_asked = place.kill_at is not None
        death = Death(
            code,
            lived=now - place.started_at,
            ready_for=None if place.ready_at is None else now - place.ready_at,
            has_served=place.has_served,
            asked=was_asked,
            oom_kills=0 if kills is None or place.oom_kills is None else kills - place.oom_kills,
        )
        place.worker.lifeline.close()
        place.worker, place.kill_at = None, None
        place.deaths.append(death)
        if self._result is not None:
            self._say(described(pid, death), level="info")
            return
        failure = None if place.report is None or was_asked else Failure.decode(place.report)
        if failure is not None and not self._goes_on_after(failure):
            return
        self._release()
        cause = handed_on(death, None if place.last is None else place.last.cause)
        if place.last is None or death.was_ready:  # one that never was has interrupted nothing
            place.last = End(cause, int(time.time() * 1000))
        if was_asked:
            place.deaths.clear()
        if failure is not None and failure.kind == "locked" and not self._was_ever_ready:
            self._wait_for_lock(place, failure)
            return
        if failure is not None and failure.kind == "passing":
            self._wait_for_database(place, pid, failure)
            return
        wait = wait_after(place.deaths)
        place.start_at = now + wait
        later = f" in {wait:g} s" if wait else ""
        text = f"{described(pid, death)}; starting another{later} (cause: {cause})"
        if failure is not None:
            text = f"worker {pid} could not start: {failure.text}; trying again{later}"
        self._say(text, level="info" if was_asked else "warning")

    def _wait_for_lock(self, place: Place, failure: Failure) -> None:
        """The last worker of a supervisor that was killed holds the store until it has drained."""
        if not self._is_locked_out:
            self._is_locked_out = True
            most = self._settings.drain + LOCK_MARGIN
            self._say(f"{failure.text} Waiting up to {most:g} s for it to stop…")
        place.start_at = self._now() + LOCK_PAUSE

    def _wait_for_database(self, place: Place, pid: int, failure: Failure) -> None:
        """It is looked for often, so that it is served from soon after its return; why, is said once."""
        place.deaths.clear()
        place.start_at = self._now() + AWAY_PAUSE
        if self._away_since is None:
            self._away_since = self._now()
        if failure.text not in self._away_for:
            self._away_for.add(failure.text)
            often = f"trying again every {AWAY_PAUSE:g} s"
            self._say(f"worker {pid} could not start: {failure.text}; {often}")

    def _tell_back(self) -> None:
        if self._away_since is not None:
            lasted = self._now() - self._away_since
            self._say(f"the database can be reached again, after {lasted:.1f} s")
            self._away_since = None
            self._away_for.clear()

    def _goes_on_after(self, failure: Failure) -> bool:
        """Whether the next worker is started now; if not, say why in one line."""
        has_waited = self._now() - self._began > self._settings.drain + LOCK_MARGIN
        match next_step(
            failure,
            was_ever_ready=self._was_ever_ready,
            watches=self._settings.watches,
            has_waited=has_waited,
        ):
            case "stop":
                self._say(failure.text, level="error")
                self._stop(USAGE, quietly=True)
                return False
            case "wait":
                self._say(f"{failure.text}. Waiting for a change…", level="error")
                return False
        return True

    def _kill(self) -> None:
        """Those whose time is over."""
        for pid, place in self._workers().items():
            if place.kill_at is not None and place.kill_at <= self._now():
                self._say(f"worker {pid} has not stopped in time, and is killed")
                place.kill_at = float("inf")
                processes.kill(pid)

    # --- waiting ---------------------------------------------------------------------------------

    def _load(self) -> None:
        """One import, once the first worker is ready and nothing else is to be done."""
        if not self._to_load or self._load_at is None or self._result is not None:
            return
        if (
            any(place.ready_at is not None for place in self._places)
            or self._now() >= self._load_at
        ):
            self._load_at = 0.0
            try:
                self._is_loading = True
                imports.load(self._to_load.popleft())
                self._is_loading = False
            except _Stop:  # what is half loaded is never forked
                self._to_load.clear()
            if not self._to_load:
                imports.share_memory()
                self._say("everything is loaded", level="debug")

    def _wait(self) -> None:
        """Until a signal comes, a worker says something, or something is due."""
        moments = [place.start_at for place in self._places] + [p.kill_at for p in self._places]
        if self._to_load and self._result is None:
            moments.append(self._load_at)
        lines = [
            place.worker.lifeline
            for place in self._places
            if place.worker is not None and not place.is_silent
        ]
        due = min((each for each in moments if each is not None), default=float("inf"))
        timeout = None if due == float("inf") else max(0.0, due - self._now())
        select.select([self._woken, *lines], [], [], timeout)

    def _now(self) -> float:
        return time.monotonic()

    def _say(self, text: str, *, level: str = "warning") -> None:
        """Log a line. A worker that dies is logged at every level.

        Until a first worker has started, what is only for information is held back: if the start fails, the
        reason is the only line.
        """
        wanted = LEVELS.get(self._settings.log_level, LEVELS["info"])
        if LEVELS[level] < min(wanted, LEVELS["warning"]):
            return
        if self._held is not None and level == "info" and wanted == LEVELS["info"]:
            self._held.append(text)
        else:
            self._write(text)

    def _release(self) -> None:
        """Write what was held back."""
        held, self._held = self._held or [], None
        for text in held:
            self._write(text)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            sys.stderr.write(f"outlast: {text}\n")
            sys.stderr.flush()
