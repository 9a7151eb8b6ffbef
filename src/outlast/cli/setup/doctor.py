"""`outlast doctor`: checks what works on this machine, and says what to install."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outlast.cli.models import PROVIDERS, installed
from outlast.cli.output import as_json, console
from outlast.core.errors import OutlastError
from outlast.store.password import without_password
from outlast.store.url import DEFAULT, file_of

Verdict = Literal["ok", "note", "bad"]
MARKS = {"ok": ("✓", "green"), "note": ("·", "yellow"), "bad": ("✗", "red")}
SLOW_FSYNC = 0.002  # seconds; a slower fsync runs in a thread


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `then` says what to do."""

    what: str
    verdict: Verdict
    found: str
    then: str | None = None


def doctor(store: str | None, json: bool, target: str | None = None) -> int:
    """Run all checks. Returns the exit status: 1 if there is a problem."""
    checks = [*_machine(), *_disk(store), *_packages(), *_models(), *_network()]
    checks += [*_batteries(), *_agents(target)]
    checks += asyncio.run(_store(store))
    if json:
        as_json(checks)
    else:
        _show(checks)
    return 1 if any(each.verdict == "bad" for each in checks) else 0


def _show(checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    to, table = console(), Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for each in checks:
        mark, style = MARKS[each.verdict]
        text = Text(each.found)
        if each.then is not None:
            text.append(f" {each.then}", style="dim")
        table.add_row(Text(mark, style=style), each.what, text)
    to.print(table)
    bad = sum(each.verdict == "bad" for each in checks)
    to.print()
    to.print(f"{bad} problems found." if bad else "No problems found.")


def _machine() -> Iterator[Check]:
    version = importlib.metadata.version("outlast")
    yield Check("outlast", "ok", version)
    python = platform.python_version()
    yield Check("Python", "ok", f"{python} at {sys.executable}")
    system = platform.system()
    if system == "Linux":
        yield Check("system", "ok", f"Linux {platform.release()}")
    elif system == "Darwin":
        yield Check(
            "system",
            "note",
            "macOS",
            "Workers are spawned instead of forked, so they start more slowly.",
        )
    else:
        yield Check("system", "bad", system, "outlast runs on Linux and macOS.")
    yield Check("SQLite", "ok", sqlite3.sqlite_version)


def _disk(url: str | None) -> Iterator[Check]:
    """Check the folder of the store: whether it is writable, and how long an fsync takes."""
    try:
        path = file_of(url or DEFAULT)
    except OutlastError as error:
        yield Check("folder", "bad", str(error))
        return
    if path is None:
        return
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".outlast-doctor-") as place:
            with closing(sqlite3.connect(Path(place) / "probe.db", isolation_level=None)) as db:
                (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            took = _fsync_time(Path(place))
    except OSError as error:
        reason = error.strerror or str(error)
        yield Check(
            "folder", "bad", f"{folder} is not writable ({reason})", "Check its permissions."
        )
        return
    if mode != "wal":
        text = f"SQLite cannot use a write-ahead log in {folder}"
        yield Check("folder", "bad", text, "Is this a network file system? Use a local disk.")
        return
    yield Check("folder", "ok", f"{folder} is writable")
    slow = took > SLOW_FSYNC
    text = f"{took * 1000:.1f} ms on average"
    yield Check("fsync", "note" if slow else "ok", text, _FSYNC if slow else None)


_FSYNC = "This is slow. Commits of many agents share one fsync, and it runs in a thread."


def _fsync_time(folder: Path, times: int = 20) -> float:
    with (folder / "probe").open("wb", buffering=0) as file:
        started = time.perf_counter()
        for _ in range(times):
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
        return (time.perf_counter() - started) / times


def _packages() -> Iterator[Check]:
    wanted = [
        ("asyncpg", "PostgreSQL", "pip install 'outlast[postgres]'"),
        ("uvloop", "a faster event loop", "pip install 'uvicorn[standard]'"),
        ("watchfiles", "reloading in outlast dev", "pip install 'uvicorn[standard]'"),
        ("opentelemetry", "traces", "pip install 'outlast[otel]'"),
    ]
    for package, purpose, then in wanted:
        if installed(package):
            yield Check(package, "ok", f"installed, for {purpose}")
        else:
            yield Check(package, "note", f"not installed, needed for {purpose}.", then)


def _models() -> Iterator[Check]:
    """Check the providers for which outlast has extras."""
    ready = []
    for name in ("anthropic", "openai", "google"):
        provider = PROVIDERS[name]
        keys = " or ".join(provider.keys)
        if not installed(provider.package):
            then = f"pip install 'outlast[{provider.extra}]'"
            yield Check(name, "note", "package not installed.", then)
        elif not any(os.environ.get(key) for key in provider.keys):
            yield Check(name, "note", "installed, but no key is set.", f"Set {keys}.")
        else:
            ready.append(name)
            yield Check(name, "ok", "installed, key set (not tested)")
    if not ready:
        then = "outlast demo needs none, and tests use ScriptedModel."
        yield Check("models", "note", "no model is usable.", then)


def _network() -> Iterator[Check]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 8000))
        except OSError:
            yield Check("port 8000", "note", "in use.", "Choose another port with --port.")
        else:
            yield Check("port 8000", "ok", "free")


def _batteries() -> Iterator[Check]:
    """Check the announced batteries: whether they can be imported, and what they contain."""
    from outlast.inspect.batteries import BatteryUnusable, installed

    for name, found in installed().items():
        try:
            battery = found.load()
        except BatteryUnusable as error:
            yield Check(f"battery {name}", "bad", str(error), f"Repair or remove {found.origin}.")
            continue
        brings = {"tables": battery.schema, "views": battery.views, "commands": battery.commands}
        words = ", ".join(word for word, value in brings.items() if value is not None)
        yield Check(f"battery {name}", "ok", f"from {found.origin}, with {words or 'a part only'}")


def _agents(target: str | None) -> Iterator[Check]:
    """List the agent classes: their batteries, and the order of their parts."""
    from outlast.agent.gateway import batteries, part_order
    from outlast.cli.load.load import load

    if target is None and not Path("agents").is_dir():
        return
    try:
        classes = load(target or "agents/", None).host.classes
    except Exception as error:
        yield Check("agents", "bad", str(error))
        return
    for name, agent_class in classes.items():
        found = ", ".join(battery.name for battery in batteries(agent_class)) or "none"
        order = ", ".join(part_order(agent_class))
        yield Check(f"agent {name}", "ok", f"batteries: {found}. Parts in order: {order}")


async def _store(url: str | None) -> list[Check]:
    from outlast.inspect import views
    from outlast.inspect.hosted import is_hosted
    from outlast.inspect.reader import reading

    try:
        path = file_of(url or DEFAULT)
        shown = without_password(url or DEFAULT) if path is None else str(path)
        if path is not None and not path.exists():
            return [Check("store", "note", f"{path} does not exist yet.", "A host creates it.")]
        hosted = await is_hosted(url)
        async with reading(url) as reader:
            incidents = await views.incidents(reader)
            agents = await views.agents(reader, limit=1000)
    except OutlastError as error:
        return [Check("store", "bad", str(error))]
    state = {True: "open in a host", False: "not open in any host"}.get(hosted, "reachable")  # type: ignore[arg-type]
    checks = [Check("store", "ok", f"{shown}: {state}, {len(agents)} agents")]
    stuck = [each.address for each in agents if each.state == "stuck"]
    for address in stuck:
        checks.append(Check("stuck", "bad", address, f"outlast release '{address}'"))
    given_up = [each for each in incidents if each.state == "exhausted"]
    if given_up:
        text = f"{len(given_up)} turns were given up recently."
        checks.append(Check("incidents", "note", text, "outlast incidents list"))
    return checks
