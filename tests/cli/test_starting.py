"""`outlast init` and `outlast doctor`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import beside, outlast
from starlette.requests import HTTPConnection

from outlast import Agent
from outlast.chat.recovery.incidents import _STRIKE
from outlast.host.address import Address
from outlast.inspect.offline import offline
from support import hosting


class Notes(Agent):
    async def keep(self) -> None:
        await self.storage.put("key", 1)


def test_a_new_project_works_and_its_tests_kill_its_agent(tmp_path: Path) -> None:
    folder = tmp_path / "My Shop"
    made = outlast("init", str(folder), "--model", "openai:gpt-5", OPENAI_API_KEY="")
    assert made.code == 0, made.err
    assert "needs a key: set OPENAI_API_KEY" in made.out
    text = {
        path: (folder / path).read_text() for path in ("pyproject.toml", "Dockerfile", "README.md")
    }
    assert 'name = "my-shop"' in text["pyproject.toml"]
    assert "outlast[openai]" in text["Dockerfile"]
    assert "export OPENAI_API_KEY=" in text["README.md"]
    assert not [each for each in folder.rglob("*") if each.is_file() and "{{" in each.read_text()]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


def test_a_new_project_s_container_lets_nobody_in_who_does_not_know_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outlast("init", str(tmp_path / "shop")).code == 0
    monkeypatch.syspath_prepend(str(tmp_path / "shop"))
    made: dict[str, Any] = {}
    exec((tmp_path / "shop" / "app.py").read_text(), made)
    assert made["app"].has_auth

    def asked(query: str = "", **headers: str) -> HTTPConnection:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        return HTTPConnection({"type": "http", "headers": raw, "query_string": query.encode()})

    for token in ("", "secret"):
        monkeypatch.setenv("CHAT_TOKEN", token)
        for wrong in (asked(), asked("token="), asked("token=x"), asked(authorization="Bearer ")):
            assert made["who"](wrong) is None
    assert made["who"](asked("token=secret")) == "user"
    assert made["who"](asked(authorization="Bearer secret")) == "user"
    assert "serve app.py --host 0.0.0.0" in (tmp_path / "shop" / "Dockerfile").read_text()


def test_nothing_that_is_there_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    failed = outlast("init", str(tmp_path))
    assert (failed.code, "already contains README.md" in failed.err) == (1, True)
    assert [each.name for each in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "mine"


def test_what_is_missing_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlast.cli.setup import doctor as doctoring

    monkeypatch.setattr(doctoring, "installed", lambda package: package == "openai")
    store = f"sqlite:///{tmp_path}/none.db"
    told = outlast("doctor", "--store", store, "--json", OPENAI_API_KEY="x")
    found = {each["what"]: each for each in told.json}
    assert told.code == 0
    assert found["asyncpg"]["then"] == "pip install 'outlast[postgres]'"
    assert found["anthropic"]["then"] == "pip install 'outlast[anthropic]'"
    assert found["openai"]["verdict"] == "ok"
    assert found["folder"]["verdict"] == "ok"
    assert "does not exist yet" in found["store"]["found"]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    shown = outlast("doctor", "--store", store)
    assert "No problems found." in shown.out


async def test_a_stuck_agent_and_a_store_that_is_none_are_in_the_way(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with hosting(Notes, url=sqlite_url) as host:
        await host.get(Notes, "a").keep()
    address = Address.of("Notes", "a")
    async with offline(sqlite_url) as writer:
        for _ in range(4):  # one with others, three alone
            await writer._commit(address, [(_STRIKE, (address.text, 1))])
    told = await beside("doctor", "--store", sqlite_url, "--json")
    assert told.code == 1
    assert [each["then"] for each in told.json if each["verdict"] == "bad"] == [
        "outlast release 'Notes/a'"
    ]
    (tmp_path / "text.db").write_text("Dear diary, " * 1000)
    told = await beside("doctor", "--store", f"sqlite:///{tmp_path}/text.db")
    assert (told.code, "is not a valid SQLite database" in told.out) == (1, True)


def test_torture_says_what_it_takes() -> None:
    command = [sys.executable, "-m", "outlast.cli.main", "torture"]  # it becomes another program
    told = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert told.returncode == 0
    assert "--kills" in told.stdout
    wrong = subprocess.run([*command, "--kills", "0"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "from 1 on" in wrong.stderr
