"""What the supervisor decides, as tables; and an application that is told to leave."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent, App, Host
from outlast.cli.serving import imports
from outlast.cli.serving.exits import (
    HASTY,
    HASTY_WAIT,
    SETTLED,
    STEADY,
    WAITS,
    WorkerExit,
    cause_for_next,
    cause_of,
    described,
    wait_after,
)
from outlast.cli.serving.memory import oom_kills
from outlast.cli.serving.settings import NO_MEMORY, Settings, workers_problem
from outlast.cli.serving.sockets import CannotListen, listen, url
from outlast.cli.serving.supervisor import REMEMBERED
from outlast.server.first_response import FirstResponse
from outlast.server.uvicorn_server import time_for_work
from support import activations_of

CRASHED = 1
NEVER_READY = WorkerExit(CRASHED, 0.5, ready_for=None)
SLOW_TO_START = WorkerExit(CRASHED, 60.0, ready_for=None)  # and still it has never been ready
USELESS = WorkerExit(CRASHED, 0.5, ready_for=0.1)
IDLE = WorkerExit(CRASHED, 9.0, ready_for=SETTLED)  # nobody has asked it anything
SERVED = WorkerExit(CRASHED, 9.0, ready_for=STEADY, has_served=True)
SERVED_BRIEFLY = WorkerExit(CRASHED, 0.5, ready_for=0.1, has_served=True)


@pytest.mark.parametrize(
    ("deaths", "wait"),
    [
        ([], 0.0),
        # it never gets as far as serving anything
        ([NEVER_READY], 0.0),
        ([NEVER_READY] * 2, 0.0),
        ([NEVER_READY] * 3, 0.2),
        ([NEVER_READY] * 4, 0.5),
        ([NEVER_READY] * 10, 30.0),
        ([NEVER_READY] * 1000, 30.0),
        ([SLOW_TO_START] * 4, 0.5),
        ([USELESS] * 4, 0.5),
        ([USELESS, NEVER_READY] * 2, 0.5),
        # it has served something, and was killed
        ([SERVED], 0.0),
        ([SERVED] * 10, 0.0),
        ([SERVED] * 1000, 0.0),
        ([SERVED_BRIEFLY] * 10, 0.0),
        ([*[NEVER_READY] * 9, SERVED_BRIEFLY], 0.0),
        ([*[NEVER_READY] * 9, SERVED_BRIEFLY, *[NEVER_READY] * 3], 0.2),
        # it was there for a while, and nobody asked it anything
        ([IDLE] * 1000, 0.0),
        ([*[USELESS] * 9, IDLE], 0.0),
        ([*[USELESS] * 9, IDLE, *[USELESS] * 3], 0.2),
        # traffic hides for a while that each of them dies right after its start
        ([SERVED_BRIEFLY] * HASTY, 0.0),
        ([SERVED_BRIEFLY] * (HASTY + 1), HASTY_WAIT),
        ([SERVED_BRIEFLY] * 1000, HASTY_WAIT),
        ([*[SERVED_BRIEFLY] * 1000, SERVED], 0.0),
        ([*[SERVED_BRIEFLY] * 1000, *[NEVER_READY] * 10], 30.0),
    ],
)
def test_workers_that_serve_nothing_are_started_later_and_later(
    deaths: list[WorkerExit], wait: float
) -> None:
    assert wait_after(deaths) == wait


def test_enough_deaths_are_remembered_for_every_wait() -> None:
    assert max(HASTY + 1, len(WAITS) + 1) <= REMEMBERED


def test_waits_only_grow() -> None:
    assert list(WAITS) == sorted(WAITS)
    assert max(WAITS) == 30.0


@pytest.mark.parametrize(
    ("death", "cause"),
    [
        (WorkerExit(-signal.SIGKILL, 1.0), "crashed"),
        (WorkerExit(-signal.SIGSEGV, 1.0), "crashed"),
        (WorkerExit(1, 1.0), "crashed"),
        (WorkerExit(3, 1.0), "crashed"),
        (WorkerExit(0, 1.0), "deploy"),
        (WorkerExit(-signal.SIGTERM, 1.0), "deploy"),
        (WorkerExit(-signal.SIGINT, 1.0), "deploy"),
        (WorkerExit(-signal.SIGKILL, 1.0, asked=True), "deploy"),
        (WorkerExit(1, 1.0, asked=True), "deploy"),
        (WorkerExit(-signal.SIGKILL, 1.0, oom_kills=1), "oom"),
        (WorkerExit(-signal.SIGSEGV, 1.0, oom_kills=1), "crashed"),
        (WorkerExit(NO_MEMORY, 1.0), "oom"),
    ],
)
def test_the_word_for_a_death(death: WorkerExit, cause: str) -> None:
    assert cause_of(death) == cause


@pytest.mark.parametrize(
    ("was_ready", "told", "next_is_told"),
    [
        (True, None, "crashed"),
        (True, "oom", "crashed"),
        (False, None, "crashed"),
        (False, "oom", "oom"),
        (False, "deploy", "deploy"),
    ],
)
def test_what_was_told_to_a_worker_that_never_started_is_told_again(
    was_ready: bool, told: str | None, next_is_told: str
) -> None:
    death = WorkerExit(1, 1.0, ready_for=0.5 if was_ready else None)
    assert cause_for_next(death, told) == next_is_told


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-9, "worker 5 was killed by SIGKILL after 4.2 s"),
        (-64, "worker 5 was killed by SIGRTMAX after 4.2 s"),
        (-99, "worker 5 was killed by signal 99 after 4.2 s"),
        (3, "worker 5 ended with exit status 3 after 4.2 s"),
    ],
)
def test_a_death_is_described(code: int, text: str) -> None:
    assert described(5, WorkerExit(code, 4.21)) == text


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        ("0::/a/b\n", {"a/b/memory.events": "low 0\noom 2\noom_kill 3\n"}, 3),
        ("0::/\n", {"memory.events": "oom_kill 1\noom_group_kill 0\n"}, 1),
        ("0::/\n", {}, None),
        ("0::/\n4:memory:/x\n", {"memory/x/memory.oom_control": "under_oom 0\noom_kill 7\n"}, 7),
        ("0::/\n4:cpu,memory:/x\n", {"memory/memory.oom_control": "oom_kill 8\n"}, 8),
        ("0::/\n4:memory:/x\n", {"memory/x/memory.oom_control": "under_oom 0\n"}, None),
        ("nonsense", {}, None),
    ],
)
def test_the_counter_of_a_control_group_is_found(
    tmp_path: Path, groups: str, files: dict[str, str], count: int | None
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert oom_kills(tmp_path / "groups", tmp_path / "mounted") == count


def test_where_there_are_no_control_groups_there_is_no_counter(tmp_path: Path) -> None:
    assert oom_kills(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(
    ("workers", "store", "is_refused"),
    [
        (1, None, False),
        (1, "sqlite:///a.db", False),
        (2, "postgresql://h/d", False),
        (2, "postgres://h/d", False),
        (2, "sqlite:///a.db", True),
        (2, None, True),
    ],
)
def test_several_workers_need_postgresql(workers: int, store: Any, is_refused: bool) -> None:
    assert (workers_problem(workers, store) is not None) == is_refused


def test_settings_reach_a_fresh_process() -> None:
    settings = Settings("a:b", "::1", 1, "sqlite:///ü.db", "debug", 3, 0.5)
    assert Settings.decode(settings.encode()) == settings


@pytest.mark.parametrize(("drain", "work"), [(0.0, 0.0), (1.0, 0.8), (10.0, 8.0), (100.0, 98.0)])
def test_a_part_of_the_time_is_kept_for_handing_over(drain: float, work: float) -> None:
    assert time_for_work(drain) == pytest.approx(work)


def test_listening_says_where() -> None:
    (made,) = listen("127.0.0.1", 0)
    with made:
        port = made.getsockname()[1]
        assert url(made) == f"http://127.0.0.1:{port}"
        with pytest.raises(CannotListen, match="in use"):
            listen("127.0.0.1", port)
    with pytest.raises(CannotListen, match="cannot listen on"):
        listen("no such host.invalid", 0)


def test_what_cannot_be_imported_is_left_to_the_worker(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "broken_sdk.py").write_text("raise RuntimeError('no')")
    monkeypatch.syspath_prepend(str(tmp_path))
    imports.load("broken_sdk")
    imports.load("no.such.module")
    assert not {"broken_sdk", "no.such.module"} & set(sys.modules)


# --- what counts as having served -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "sent", "count"),
    [
        (("http", "/agents/a/b"), [("http.response.start", 200)], 1),
        (("http", "/agents/a/b"), [("http.response.start", 404)], 1),
        (("http", "/agents/a/b"), [("http.response.start", 200), ("http.response.body", 0)], 1),
        (("http", "/agents/a/b"), [("http.response.start", 500)], 0),
        (("http", "/agents/a/b"), [("http.response.start", 503)], 0),
        (("http", "/healthz"), [("http.response.start", 200)], 0),
        (("http", "/agents/a/readyz"), [("http.response.start", 200)], 1),
        (("websocket", "/agents/a/b"), [("websocket.accept", 0)], 0),
        (("websocket", "/agents/a/b"), [("websocket.accept", 0), ("websocket.send", 0)], 1),
        (("lifespan", ""), [("lifespan.startup.complete", 0)], 0),
    ],
)
async def test_what_counts_as_having_served(
    scope: tuple[str, str], sent: list[tuple[str, int]], count: int
) -> None:
    told: list[int] = []
    passed: list[str] = []

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        for kind, status in sent:
            await send({"type": kind, "status": status})

    async def send(message: Any) -> None:
        passed.append(message["type"])

    served = FirstResponse(application, lambda: told.append(len(passed)))
    for _ in range(2):  # it is told once
        await served({"type": scope[0], "path": scope[1]}, _nothing, send)
    assert passed == [kind for kind, _ in sent] * 2
    assert len(told) == count


async def _nothing() -> Any:
    raise AssertionError("nothing is to be received")


# --- the host and the application ------------------------------------------------------------------


class Quiet(Agent):
    pass


def test_a_host_knows_the_words() -> None:
    assert Host([Quiet]).cause is None
    assert Host([Quiet], cause="unknown").cause is None
    assert Host([Quiet], cause="oom").cause == "oom"
    with pytest.raises(
        ValueError, match="cause must be crashed, oom, deploy or unknown, got 'bored'"
    ):
        Host([Quiet], cause="bored")


@pytest.mark.parametrize(
    ("told", "cause"), [(None, None), ("", None), ("oom", "oom"), ("unknown", None), ("x", None)]
)
async def test_an_application_reads_what_its_supervisor_says(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, told: str | None, cause: str | None
) -> None:
    monkeypatch.delenv("OUTLAST_CAUSE", raising=False)
    app = App([Quiet], sqlite_url)
    if told is not None:
        monkeypatch.setenv("OUTLAST_CAUSE", told)
    async with app.lifespan():
        assert app.host.cause == cause


async def test_what_an_application_says_itself_stays(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST_CAUSE", "oom")
    app = App([Quiet], sqlite_url, cause="deploy")
    async with app.lifespan():
        assert app.host.cause == "deploy"


def marking(app: App, mark: Any) -> None:
    """From now on, this is done with what runs when the host is about to stop."""
    activations_of(app.host).mark = mark  # type: ignore[method-assign]


async def test_what_runs_is_marked_once_before_the_host_drains(sqlite_url: str) -> None:
    marked: list[tuple[str, str]] = []

    async def mark(cause: str) -> None:
        marked.append((cause, app.host._state))

    app = App([Quiet], sqlite_url)
    async with app.lifespan():
        marking(app, mark)
        await app.leave(5.0)
        await app.leave(5.0)
        assert marked == [("deploy", "running")]
    assert marked == [("deploy", "running")]
    app = App([Quiet], sqlite_url)
    async with app.lifespan():
        marking(app, mark)  # a server that is not ours
    assert marked == [("deploy", "running")] * 2


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_mark_that_fails_holds_up_no_stop(sqlite_url: str, how: str) -> None:
    async def mark(_: str) -> None:
        if how == "raises":
            raise RuntimeError("no")
        await asyncio.sleep(1000)

    app = App([Quiet], sqlite_url)
    began = asyncio.get_running_loop().time()
    async with app.lifespan():
        marking(app, mark)
    assert app.host._state == "stopped"
    assert asyncio.get_running_loop().time() - began < 5


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("within", "own", "took"), [(None, 7.0, 7.0), (3.0, 7.0, 3.0), (9.0, 7.0, 7.0)]
)
async def test_running_work_has_the_time_that_is_left(
    sqlite_url: str, within: float | None, own: float, took: float
) -> None:
    class Busy(Agent):
        async def work(self) -> None:
            await asyncio.sleep(1000)

    app = App([Busy], sqlite_url, shutdown_timeout=own)
    async with app.lifespan():
        working = asyncio.ensure_future(app.host.get(Busy, "a").work())
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        await app.leave(within)
    assert asyncio.get_running_loop().time() - began == pytest.approx(took, abs=0.5)
    await asyncio.gather(working, return_exceptions=True)
