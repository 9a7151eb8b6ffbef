"""The supervisor: one thread that starts and restarts workers."""

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

from outlast.cli.load.load import InvalidTarget
from outlast.cli.serving import imports, processes
from outlast.cli.serving.access import keep_token
from outlast.cli.serving.exits import WorkerExit, cause_for_next, described, wait_after
from outlast.cli.serving.failures import Failure, next_step
from outlast.cli.serving.memory import oom_kills
from outlast.cli.serving.processes import ForkedWorker, PreviousExit, WorkerHandle
from outlast.cli.serving.settings import Settings, workers_problem
from outlast.cli.serving.sockets import listen, url
from outlast.cli.serving.terminal import Hangup, hangup_means
from outlast.cli.serving.worker import USAGE, load_application, work

REMEMBERED = 40  # exits of a slot
LOCK_MARGIN = (
    2.0  # seconds that another server has to release the store, in addition to its drain time
)
LOCK_PAUSE = 0.2  # seconds between two attempts to lock it
AWAY_PAUSE = 1.0  # seconds between two attempts to reach the database
TRY_AGAIN = 1.0  # seconds before starting a process is retried
LOAD_AFTER = 10.0  # seconds after which background imports start even if no worker is ready
LEVELS = {"trace": 0, "debug": 1, "info": 2, "warning": 3, "error": 4, "critical": 5}


def supervise(settings: Settings, *, preload: bool = False) -> int:
    """Serve until asked to stop. Returns the exit status, of the supervisor or of a forked worker."""
    hangup = hangup_means()
    if settings.workers > 1:
        settings = replace(settings, server=secrets.token_hex())
    if settings.store is not None:
        _check(settings, settings.store)
    keep_token()
    sockets = listen(settings.host, settings.port)  # connections wait from here on
    application = None
    with imports.reduced_gc():
        for name in imports.AT_ONCE:
            imports.load(name)
        imports.load_prices()
        if preload:
            application = load_application(settings)
    imports.share_memory()
    outcome = Supervisor(settings, sockets, hangup).run()
    if isinstance(outcome, ForkedWorker):
        return work(settings, sockets, outcome.lifeline, application)
    return outcome


def _check(settings: Settings, store: object) -> None:
    why = workers_problem(settings.workers, store)
    if why is not None:
        raise InvalidTarget(why)


@dataclass(slots=True)
class WorkerSlot:
    """A series of workers, each replacing the previous one."""

    start_at: float | None  # None: a worker is running, or none is wanted
    last: PreviousExit | None = None  # passed to the next worker, as to the present one
    worker: WorkerHandle | None = None
    started_at: float = 0.0
    oom_kills: int | None = None  # the counter at its start
    kill_at: float | None = None  # its deadline after it was asked to stop
    ready_at: float | None = None  # when the worker reported it
    has_served: bool = False  # the worker reported it
    report: bytes | None = None  # why the worker failed to start, as far as received
    is_silent: bool = False  # it closed its end of the lifeline
    exits: deque[WorkerExit] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def ask_to_stop(self, kill_at: float) -> None:
        """Ask the worker to stop by a deadline; asking again does not extend it."""
        if self.worker is not None and self.kill_at is None:
            self.kill_at = kill_at
            processes.ask_to_stop(self.worker.pid)


class _Stop(BaseException):
    """Interrupts an import that is no longer needed."""


class Supervisor:
    """Keeps workers running. Times are monotonic."""

    def __init__(
        self, settings: Settings, sockets: list[socket.socket], hangup: Hangup = "reload"
    ) -> None:
        self._settings = settings
        self._hangup = hangup
        self._was_ever_ready = False
        self._is_locked_out = False  # and logged
        self._away_since: float | None = None  # when the database became unreachable
        self._away_for: set[str] = set()  # the reasons logged since
        self._began = self._now()
        self._held: list[str] | None = []  # lines held back until the start succeeds; None: written
        self._sockets = sockets
        self._slots = [WorkerSlot(start_at=0.0) for _ in range(settings.workers)]
        self._woken, self._waker = socket.socketpair()  # a byte per signal
        self._result: int | None = None  # set when it stops
        self._to_load = deque(imports.SOON)
        self._load_at: float | None = None
        self._is_loading = False

    def run(self) -> int | ForkedWorker:
        """Run until asked to stop, and return the exit status; in a forked worker, return its lifeline."""
        where = ", ".join(url(each) for each in self._sockets)
        self._log(
            f"serving on {where} (supervisor {os.getpid()}; press Ctrl-C to stop)", level="info"
        )
        self._listen_for_signals()
        while True:
            self._handle_signals()
            self._read_lifelines()
            self._reap()
            if self._result is not None and not self._workers():
                if self._result == 0:
                    self._write_held()
                return self._result
            for slot in self._slots:
                forked = self._start(slot)
                if forked is not None:
                    return forked
            self._kill()
            self._load()
            self._wait()

    # --- signals ---------------------------------------------------------------------------------

    def _listen_for_signals(self) -> None:
        """Have each signal write a byte, which ends the wait."""
        for each in (self._woken, self._waker):
            each.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in processes.SIGNALS:
            if number != signal.SIGHUP or self._hangup != "ignore":
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        """Interrupt an import when asked to stop. The byte of the signal is already written."""
        if self._is_loading and self._is_stop(number):
            self._is_loading = False
            raise _Stop

    def _handle_signals(self) -> None:
        try:
            received = self._woken.recv(4096)
        except BlockingIOError:
            return
        for number in received:
            if number == signal.SIGINT and self._result is not None:
                for slot in self._slots:
                    slot.kill_at = self._now()
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
            self._log("stopping", level="debug" if quietly else "info")
        for slot in self._slots:
            slot.start_at = None
            slot.ask_to_stop(self._now() + self._settings.drain)

    def _reload(self) -> None:
        """Let every worker drain, which releases the store, then start another in its slot."""
        self._log("reloading", level="info")
        for slot in self._slots:
            slot.exits.clear()
            if slot.start_at is not None or slot.worker is None:
                slot.start_at = self._now()
            slot.ask_to_stop(self._now() + self._settings.drain)

    # --- workers ---------------------------------------------------------------------------------

    def _workers(self) -> dict[int, WorkerSlot]:
        return {slot.worker.pid: slot for slot in self._slots if slot.worker is not None}

    def _start(self, slot: WorkerSlot) -> ForkedWorker | None:
        """Start the next worker of a slot, if it is due."""
        if slot.start_at is None or slot.start_at > self._now():
            return None
        slot.started_at = self._now()
        slot.oom_kills = oom_kills()
        try:
            if imports.can_fork():
                others = [each.worker.lifeline for each in self._workers().values() if each.worker]
                started = processes.fork(slot.last, [self._woken, self._waker, *others])
            else:
                started = processes.spawn(self._settings, slot.last, self._sockets)
        except OSError as error:
            self._log(f"cannot start a worker: {error}; retrying in {TRY_AGAIN:g} s")
            slot.start_at = self._now() + TRY_AGAIN
            return None
        if isinstance(started, ForkedWorker):
            return started
        was_failing = slot.report is not None
        slot.worker, slot.start_at, slot.kill_at = started, None, None
        slot.ready_at, slot.has_served, slot.is_silent = None, False, False
        slot.report = None
        if self._load_at is None:
            self._load_at = self._now() + LOAD_AFTER
        # After a failed start, the next line at this level reports the next failure or the recovery.
        level = "debug" if was_failing else "info"
        self._log(f"worker {started.pid} was {started.how}", level=level)
        return None

    def _read_lifelines(self) -> None:
        """Read the reports of the workers."""
        for slot in self._slots:
            said = self._read_lifeline(slot)
            if processes.UPGRADE in said and self._result is None and slot.kill_at is None:
                self._log("an agent requested newer code", level="info")
                self._reload()

    def _read_lifeline(self, slot: WorkerSlot) -> bytes:
        said = processes.received(slot.worker.lifeline) if slot.worker is not None else b""
        slot.is_silent = said is None
        codes, failed, report = (said or b"").partition(processes.FAILED)
        if slot.report is not None:  # the rest of a report
            codes, slot.report = b"", slot.report + (said or b"")
        elif failed:
            slot.report = report
        if slot.ready_at is None and processes.READY in codes:
            slot.ready_at = self._now()
            self._was_ever_ready = True
            self._write_held()
            self._report_database_back()
        slot.has_served = slot.has_served or processes.SERVED in codes
        return codes

    def _reap(self) -> None:
        """Handle the workers that ended, and decide when the next ones start."""
        workers = self._workers()
        for pid, code in processes.reap(workers):
            slot = workers.get(pid)
            if slot is not None:
                self._on_exit(slot, pid, code)

    def _on_exit(self, slot: WorkerSlot, pid: int, code: int) -> None:
        assert slot.worker is not None
        now, kills = self._now(), oom_kills()
        self._read_lifeline(slot)
        was_asked = slot.kill_at is not None
        worker_exit = WorkerExit(
            code,
            lived=now - slot.started_at,
            ready_for=None if slot.ready_at is None else now - slot.ready_at,
            has_served=slot.has_served,
            asked=was_asked,
            oom_kills=0 if kills is None or slot.oom_kills is None else kills - slot.oom_kills,
        )
        slot.worker.lifeline.close()
        slot.worker, slot.kill_at = None, None
        slot.exits.append(worker_exit)
        if self._result is not None:
            self._log(described(pid, worker_exit), level="info")
            return
        failure = None if slot.report is None or was_asked else Failure.decode(slot.report)
        if failure is not None and not self._continues_after(failure):
            return
        self._write_held()
        cause = cause_for_next(worker_exit, None if slot.last is None else slot.last.cause)
        if (
            slot.last is None or worker_exit.was_ready
        ):  # a worker that never was ready interrupted nothing
            slot.last = PreviousExit(cause, int(time.time() * 1000))
        if was_asked:
            slot.exits.clear()
        if failure is not None and failure.kind == "locked" and not self._was_ever_ready:
            self._wait_for_lock(slot, failure)
            return
        if failure is not None and failure.kind == "passing":
            self._wait_for_database(slot, pid, failure)
            return
        wait = wait_after(slot.exits)
        slot.start_at = now + wait
        later = f" in {wait:g} s" if wait else ""
        text = f"{described(pid, worker_exit)}; starting another{later} (cause: {cause})"
        if failure is not None:
            text = f"worker {pid} failed to start: {failure.text}; retrying{later}"
        self._log(text, level="info" if was_asked else "warning")

    def _wait_for_lock(self, slot: WorkerSlot, failure: Failure) -> None:
        """Wait for the last worker of a killed supervisor, which holds the store until it drained."""
        if not self._is_locked_out:
            self._is_locked_out = True
            most = self._settings.drain + LOCK_MARGIN
            self._log(f"{failure.text} Waiting up to {most:g} s for it to stop…")
        slot.start_at = self._now() + LOCK_PAUSE

    def _wait_for_database(self, slot: WorkerSlot, pid: int, failure: Failure) -> None:
        """Retry often, so that service resumes soon after the database does; log each reason once."""
        slot.exits.clear()
        slot.start_at = self._now() + AWAY_PAUSE
        if self._away_since is None:
            self._away_since = self._now()
        if failure.text not in self._away_for:
            self._away_for.add(failure.text)
            often = f"retrying every {AWAY_PAUSE:g} s"
            self._log(f"worker {pid} failed to start: {failure.text}; {often}")

    def _report_database_back(self) -> None:
        if self._away_since is not None:
            lasted = self._now() - self._away_since
            self._log(f"the database is reachable again after {lasted:.1f} s")
            self._away_since = None
            self._away_for.clear()

    def _continues_after(self, failure: Failure) -> bool:
        """Return whether to start the next worker now; if not, log why in one line."""
        has_waited = self._now() - self._began > self._settings.drain + LOCK_MARGIN
        match next_step(
            failure,
            was_ever_ready=self._was_ever_ready,
            watches=self._settings.watches,
            has_waited=has_waited,
        ):
            case "stop":
                self._log(failure.text, level="error")
                self._stop(USAGE, quietly=True)
                return False
            case "wait":
                self._log(f"{failure.text}. Waiting for a change…", level="error")
                return False
        return True

    def _kill(self) -> None:
        """Kill the workers whose deadline passed."""
        for pid, slot in self._workers().items():
            if slot.kill_at is not None and slot.kill_at <= self._now():
                self._log(f"worker {pid} did not stop in time; killing it")
                slot.kill_at = float("inf")
                processes.kill(pid)

    # --- waiting ---------------------------------------------------------------------------------

    def _load(self) -> None:
        """Do one background import, once the first worker is ready and nothing else is due."""
        if not self._to_load or self._load_at is None or self._result is not None:
            return
        if any(slot.ready_at is not None for slot in self._slots) or self._now() >= self._load_at:
            self._load_at = 0.0
            try:
                self._is_loading = True
                imports.load(self._to_load.popleft())
                self._is_loading = False
            except _Stop:  # a half-loaded module must never be forked
                self._to_load.clear()
            if not self._to_load:
                imports.share_memory()
                self._log("everything is loaded", level="debug")

    def _wait(self) -> None:
        """Wait for a signal, a report of a worker, or the next deadline."""
        moments = [slot.start_at for slot in self._slots] + [p.kill_at for p in self._slots]
        if self._to_load and self._result is None:
            moments.append(self._load_at)
        lines = [
            slot.worker.lifeline
            for slot in self._slots
            if slot.worker is not None and not slot.is_silent
        ]
        due = min((each for each in moments if each is not None), default=float("inf"))
        timeout = None if due == float("inf") else max(0.0, due - self._now())
        select.select([self._woken, *lines], [], [], timeout)

    def _now(self) -> float:
        return time.monotonic()

    def _log(self, text: str, *, level: str = "warning") -> None:
        """Log a line. Crashes of workers are logged at every level.

        Until the first worker has started, informational lines are held back: if the start fails, the
        reason is the only line.
        """
        wanted = LEVELS.get(self._settings.log_level, LEVELS["info"])
        if LEVELS[level] < min(wanted, LEVELS["warning"]):
            return
        if self._held is not None and level == "info" and wanted == LEVELS["info"]:
            self._held.append(text)
        else:
            self._write(text)

    def _write_held(self) -> None:
        """Write the lines that were held back."""
        held, self._held = self._held or [], None
        for text in held:
            self._write(text)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            sys.stderr.write(f"outlast: {text}\n")
            sys.stderr.flush()
