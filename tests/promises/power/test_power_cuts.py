"""Power cuts, simulated: a server's disk is recorded, and played again up to any moment, with any loss.

A recorder in C (power_recorder.c) notes every write, fsync and change of a name of a real process, and all
that it tells others, in one order. That takes a C compiler; without one, nothing of this is shown.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2 as httpx
import power_server
import pytest
from power_disk import LOSSES, Disk, Loss, records
from power_judge import (
    Images,
    Verdict,
    check_cuts,
    check_order,
    kinds_of,
    synced_in_threads,
    told_in,
)

from outlast import Host
from outlast.client import Client

HERE = Path(__file__).parent
PATIENCE = 60.0  # seconds: only a test that fails waits that long
SLOW = 4_000  # microseconds an fsync: enough for it to move to a thread
AGENTS = ("a", "b")
TURNS = 2
KEYS = 20
CUTS = 50
BOOTS = 12


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("NO POWER CUT WAS TRIED: that takes Linux and a C compiler (cc); install one")
    built = tmp_path_factory.mktemp("recorder") / "recorder.so"
    source = str(HERE / "power_recorder.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(built), source, "-lpthread"], check=True
    )
    return built


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory, if possible: the disk that matters here is a model."""
    if Path("/dev/shm").is_dir():
        folder = Path("/dev/shm") / f"outlast-power-{os.getpid()}"
        folder.mkdir()
        yield folder
        shutil.rmtree(folder)
    else:
        yield tmp_path_factory.mktemp("power")


class Recorded:
    """A disk, and the processes whose doings are recorded. The first one can be killed, or its disk fail."""

    def __init__(
        self,
        recorder: Path,
        folder: Path,
        *,
        delay: int = 0,
        kill_at: int = 0,
        fail_at: int = 0,
        file: str = "-wal",
    ) -> None:
        self.folder = folder
        self.root = folder / "disk"
        self.root.mkdir(parents=True)
        self.store = self.root / "made" / "here" / "store.db"
        self.trace = folder / "trace"
        self.deaths = 0
        spoilt = {"POWER_FILE": file, "POWER_KILL": kill_at, "POWER_FAIL": fail_at}
        self._spoilt = {name: str(value) for name, value in spoilt.items()}
        paths = [str(HERE), *filter(None, sys.path)]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "LD_PRELOAD": str(recorder),
            "POWER_ROOT": str(self.root),
            "POWER_TRACE": str(self.trace),
            "POWER_DELAY": str(delay),
        }

    def start(self, *command: str, **options: object) -> subprocess.Popen[bytes]:
        environment = self._environment | ({} if self.deaths else self._spoilt)
        return subprocess.Popen([sys.executable, *command], env=environment, **options)  # type: ignore[call-overload,no-any-return]

    def died(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it was killed; anything but that and a good end is an error."""
        assert process.returncode in (0, -signal.SIGKILL), process.returncode
        self.deaths += process.returncode != 0
        return process.returncode != 0

    def write(self, *sabotage: str) -> None:
        """Run the writer to its end, anew if it is killed."""
        while True:
            process = self.start(str(HERE / "power_writer.py"), str(self.store), *sabotage)
            process.wait(PATIENCE)
            if not self.died(process):
                return

    @property
    def images(self) -> Images:
        return Images(self.folder / "image", self.store)


class Served:
    """A server in such a process, and its clients."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def _start(self) -> subprocess.Popen[bytes]:
        url = f"sqlite:///{self.recorded.store}"
        return self.recorded.start(power_server.__file__, str(self.port), url)

    async def run(self) -> None:
        """Talk to it until everything is answered, whatever happens to it; then stop it."""
        process = self._start()
        try:
            async with asyncio.timeout(PATIENCE):
                talking = asyncio.create_task(self._talk())
                while not talking.done():
                    if process.poll() is not None:
                        assert self.recorded.died(process)
                        process = self._start()
                    await asyncio.wait({talking}, timeout=0.02)
                talking.result()
        finally:
            process.terminate()
            process.wait(PATIENCE)

    async def _talk(self) -> None:
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            while await self._call(http, AGENTS[0], "keys") is None:
                await asyncio.sleep(0.02)
            done = asyncio.Event()
            reading = asyncio.create_task(self._read(http, done))
            async with asyncio.TaskGroup() as clients:
                for name in AGENTS:
                    clients.create_task(self._chat(name))
                    clients.create_task(self._remember(http, name))
            done.set()
            await reading

    async def _chat(self, name: str) -> None:
        async with Client(self.url, "talker", name) as client:
            for turn in range(TURNS):
                async for _ in client.send(f"ask-{name}-{turn}"):
                    pass

    async def _remember(self, http: httpx.AsyncClient, name: str) -> None:
        for n in range(KEYS):
            while await self._call(http, name, "remember", f"key-{name}-{n}") is None:
                await asyncio.sleep(0.01)

    async def _read(self, http: httpx.AsyncClient, done: asyncio.Event) -> None:
        while not done.is_set():
            for name in AGENTS:
                await self._call(http, name, "keys")
                with suppress(httpx.TransportError):
                    await http.get(f"{self.url}/agents/talker/{name}/get-messages")
                await asyncio.sleep(0.002)

    async def _call(self, http: httpx.AsyncClient, name: str, method: str, *args: str) -> object:
        try:
            path = f"{self.url}/agents/talker/{name}/rpc/{method}"
            answer = await http.post(path, json={"args": list(args)})
        except httpx.TransportError:  # it was killed, or is not there yet
            return None
        return answer.json() if answer.status_code == 200 else None


@pytest.fixture(scope="module", params=["quick disk", "slow disk"])
def served(request: pytest.FixtureRequest, recorder: Path, folders: Path) -> Recorded:
    """What a server did; on a slow disk it is killed in an fsync, and the next one goes on."""
    is_slow = request.param == "slow disk"
    spoilt = {"delay": SLOW, "kill_at": 25} if is_slow else {}
    recorded = Recorded(recorder, folders / request.param.replace(" ", "-"), **spoilt)
    asyncio.run(Served(recorded).run())
    if is_slow:
        assert recorded.deaths == 1
        assert synced_in_threads(recorded.trace) > 10
    return recorded


def all_of(verdict: Verdict) -> str:
    return f"{len(verdict.problems)} problems: " + "; ".join(verdict.problems[:5])


def test_nothing_is_told_before_it_is_durable(served: Recorded) -> None:
    verdict = check_order(served.trace, served.images)
    assert not verdict.problems, all_of(verdict)
    assert verdict.told > len(AGENTS) * (TURNS * power_server.WORDS + KEYS)


def test_a_power_cut_loses_nothing_that_was_told_and_leaves_a_state_that_was(
    served: Recorded,
) -> None:
    verdict = check_cuts(served.trace, served.images, CUTS)
    assert not verdict.problems, all_of(verdict)
    assert verdict.images > CUTS * len(LOSSES)
    boot_some_of(served, verdict)


def boot_some_of(served: Recorded, verdict: Verdict) -> None:
    """What is left is taken up: every turn ends with its whole answer, and no call is made again."""
    assert len(verdict.boots) >= BOOTS
    chosen = dict(verdict.boots[:: len(verdict.boots) // BOOTS])
    told: set[str] = set()
    for n, record in enumerate(records(served.trace)):
        told |= {token.decode() for token in told_in(record)}
        if n in chosen:
            path = served.images.lay_out(chosen[n], served.folder / "boot")
            asyncio.run(boot(path, told))


async def boot(path: Path, told: set[str]) -> None:
    power_server.began.clear()
    url = f"sqlite:///{path}?synchronous=off"
    async with Host(agents=[power_server.Talker], store=url) as host:
        async with asyncio.timeout(PATIENCE):
            await host.until_settled()
        for name in AGENTS:
            messages = await host.get(power_server.Talker, name).get_messages()
            asked, answered = messages[::2], messages[1::2]
            for question, answer in zip(asked, answered, strict=True):
                turn = question.text.removeprefix("ask-")
                assert answer.text == power_server.answer_of(turn)
            known = {message.text for message in asked}
            assert {token for token in told if token.startswith(f"ask-{name}-")} <= known
    again = [turn for turn in power_server.began if f"intent-{turn}" in told]
    assert not again, f"calls were made again: {again}"
    assert len(set(power_server.began)) == len(power_server.began)


# --- an fsync that fails, a process that dies in one ----------------------------------------------


BY_BOTH = pytest.mark.parametrize("delay", [0, SLOW], ids=["by SQLite", "in a thread"])


@BY_BOTH
@pytest.mark.parametrize(("file", "fail_at"), [("-wal", 20), (".db", 2)], ids=["log", "database"])
def test_what_is_told_after_a_failed_fsync_is_durable_though_the_kernel_has_dropped_pages(
    recorder: Path, folders: Path, delay: int, file: str, fail_at: int
) -> None:
    folder = folders / f"failed{file}-{delay}"
    recorded = Recorded(recorder, folder, delay=delay, fail_at=fail_at, file=file)
    recorded.write()
    assert kinds_of(recorded.trace)["sync failed"] == 1
    verdict = check_order(recorded.trace, recorded.images)
    assert not verdict.problems, all_of(verdict)
    losses: tuple[Loss, ...] = ("synced", "sectors", "garbage")
    verdict = check_cuts(recorded.trace, recorded.images, CUTS, losses)
    assert not verdict.problems, all_of(verdict)


@BY_BOTH
def test_the_next_process_shows_nothing_of_a_killed_one_that_is_not_durable(
    recorder: Path, folders: Path, delay: int
) -> None:
    recorded = Recorded(recorder, folders / f"killed-{delay}", delay=delay, kill_at=20)
    recorded.write()
    assert recorded.deaths == 1
    verdict = check_order(recorded.trace, recorded.images)
    assert not verdict.problems, all_of(verdict)


# --- sabotage: each of these must be seen ---------------------------------------------------------


@pytest.mark.parametrize(
    ("sabotage", "spoilt"),
    [
        ("acknowledge_early", {}),
        ("read_early", {}),
        ("sync_nothing_at_opening", {"kill_at": 20}),
        ("sync_again_as_if_nothing_had_happened", {"fail_at": 20}),
        ("make_folders_and_forget_them", {}),
    ],
)
def test_a_store_that_is_broken_on_purpose_is_found_out(
    recorder: Path, folders: Path, sabotage: str, spoilt: dict[str, int]
) -> None:
    recorded = Recorded(recorder, folders / sabotage, delay=SLOW, **spoilt)
    recorded.write(sabotage)
    assert check_order(recorded.trace, recorded.images).problems


# --- backups --------------------------------------------------------------------------------------


def test_a_backup_is_reported_once_it_is_durable(recorder: Path, folders: Path) -> None:
    recorded = Recorded(recorder, folders / "backup")
    recorded.write()
    recorded.trace.unlink()
    target = recorded.root / "backups" / "new" / "copy.db"
    with (recorded.root / "shown").open("wb") as shown:
        command = ["-m", "outlast.cli.main", "db", "backup", str(target)]
        command += ["--store", f"sqlite:///{recorded.store}"]
        assert recorded.start(*command, stdout=shown).wait(PATIENCE) == 0
    disk = Disk()
    for record in records(recorded.trace):
        if record.kind == "told" and b"integrity check passed" in record.data:
            break
        if not record.path.startswith(str(recorded.store.parent)):  # what was there before
            disk.feed(record)
    else:
        raise AssertionError("it was never reported")
    left = disk.after_a_cut("synced", random.Random(0))
    assert left.get(str(target)) == target.read_bytes()
