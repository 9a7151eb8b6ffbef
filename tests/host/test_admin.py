"""The admin socket of a host: whom it answers, what it does, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent
from outlast.host.admin import socket as admin
from outlast.host.admin.socket import AdminRefused, AdminSocket, NoHost
from outlast.store.url import identity_of
from support import World, hosting


class Counter(Agent):
    _for_operators = frozenset({"add", "fail"})

    async def add(self, n: int) -> dict[str, Any]:
        total = (await self.storage.get("total") or 0) + n
        await self.storage.put("total", total)
        return {"total": total, "name": self.name}

    async def fail(self) -> None:
        raise OSError("the disk is on fire")

    async def secret(self) -> None: ...


async def ask(url: str, call: str, agent: str = "Counter/a", **arguments: Any) -> Any:
    request = {"call": call, "agent": agent, "arguments": arguments}
    return await admin.ask(admin.sockets_of(identity_of(url)), request)


async def test_a_command_reaches_the_agents_of_a_running_host(world: World) -> None:
    await world.host(Counter, admin=True)
    assert await ask(world.url, "add", n=2) == {"total": 2, "name": "a"}
    assert await ask(world.url, "add", "Counter/%C3%B6", n=1) == {"total": 1, "name": "ö"}
    hello = await ask(world.url, "hello")
    assert (hello["pid"], hello["classes"]) == (os.getpid(), ["Counter"])
    await world.stop()
    with pytest.raises(NoHost):
        await ask(world.url, "add", n=2)


@pytest.mark.parametrize(
    ("call", "agent", "told"),
    [
        ("secret", "Counter/a", "operators cannot call 'secret' of Counter"),
        ("destroy", "Counter/a", "operators cannot call 'destroy'"),
        ("add", "Conter/a", "this host does not run Conter; it runs Counter"),
        ("add", "Counter", "an address must look like"),
        ("add", "Counter/a", "missing 1 required positional argument"),
        ("fail", "Counter/a", "the disk is on fire"),
    ],
)
async def test_what_it_does_not_do_it_says_and_goes_on(
    sqlite_world: World, call: str, agent: str, told: str
) -> None:
    await sqlite_world.host(Counter, admin=True)
    with pytest.raises(AdminRefused) as caught:
        await ask(sqlite_world.url, call, agent)
    assert told in str(caught.value)
    assert (await ask(sqlite_world.url, "add", n=1))["total"] == 1


async def test_there_is_none_unless_it_is_wanted(sqlite_world: World, tmp_path: Path) -> None:
    await sqlite_world.host(Counter)
    assert [name for name in os.listdir(tmp_path) if name.endswith(".sock")] == []
    with pytest.raises(NoHost):
        await ask(sqlite_world.url, "hello")


async def test_only_its_user_can_open_it_and_it_is_gone_with_its_host(world: World) -> None:
    await world.host(Counter, admin=True)
    (path,) = admin.sockets_of(identity_of(world.url))
    mode = path.lstat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    await world.stop()
    assert not path.exists()
    assert not [name for name in os.listdir(path.parent) if name.startswith(f".{path.name[-40:]}")]


async def test_what_a_killed_host_has_left_is_replaced(sqlite_world: World, tmp_path: Path) -> None:
    left = AdminSocket(tmp_path / "store.db.sock", lambda request: asyncio.sleep(0))
    await left.open()
    assert left._server is not None
    left._server.close()  # as the kernel would
    with pytest.raises(NoHost):
        await ask(sqlite_world.url, "hello")
    await sqlite_world.host(Counter, admin=True)
    assert (await ask(sqlite_world.url, "add", n=1))["total"] == 1
    await left.close()
    assert (await ask(sqlite_world.url, "add", n=1))["total"] == 2, (
        "nobody closes what is another's"
    )


async def test_a_path_that_is_too_long_for_a_socket_has_one_elsewhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/{'long/' * 20}store.db"
    async with hosting(Counter, url=url, admin=True):
        (path,) = admin.sockets_of(identity_of(url))
        assert path.parent == admin.folder()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert (await ask(url, "add", n=1))["total"] == 1


async def test_a_folder_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "outlast").mkdir(mode=0o777)
    (tmp_path / "outlast").chmod(0o777)
    socket = AdminSocket(admin.folder() / "x", lambda request: asyncio.sleep(0))
    with pytest.raises(PermissionError, match="must be a folder that only this user can open"):
        await socket.open()
    long = f"{tmp_path}/{'long/' * 20}store.db"
    admin.socket_of(long).touch()  # somebody else's
    assert admin.sockets_of(long) == [], "nor is anybody asked there"
    (tmp_path / "outlast").chmod(0o700)
    assert admin.sockets_of(long) == [admin.socket_of(long)]


async def test_a_host_that_can_have_none_runs_without(
    sqlite_world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "store.db.sock").mkdir()
    host = await sqlite_world.host(Counter, admin=True)
    assert (await host.get(Counter, "a").add(1))["total"] == 1
    await sqlite_world.stop()
    assert "cannot open the admin socket" in caplog.text


async def test_lines_that_are_no_requests_are_answered(sqlite_world: World) -> None:
    await sqlite_world.host(Counter, admin=True)
    (path,) = admin.sockets_of(identity_of(sqlite_world.url))
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"nonsense\n[1]\n{}\n")
    answers = [await reader.readline() for _ in range(3)]
    assert all(b'"ok":false' in answer for answer in answers)
    writer.close()
