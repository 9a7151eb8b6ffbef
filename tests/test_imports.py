"""What importing outlast loads, and `script/imports`, which keeps imports pointing down the layers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "script" / "imports"

LOADED = """
import sys
before = set(sys.modules)
{code}
after = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(name for name in after if name not in sys.stdlib_module_names))
"""


def loaded_by(code: str, folder: Path) -> list[str]:
    """The packages outside the standard library that running this loads."""
    source = LOADED.format(code=dedent(code))
    result = subprocess.run(
        [sys.executable, "-c", source], cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_importing_the_public_names_loads_nothing_else(tmp_path: Path) -> None:
    assert loaded_by("from outlast import Agent, Host", tmp_path) == ["outlast"]


def test_importing_the_public_names_loads_neither_the_tests_nor_postgresql(tmp_path: Path) -> None:
    code = "from outlast import Agent, Host; import sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = [
        "outlast.testing",
        "outlast.store.postgres.engine",
        "sqlite3.dbapi2",
        "unittest",
        "pydantic",
    ]
    heavy += ["outlast.observe", "opentelemetry"]
    assert "outlast.host.life.host" in loaded
    assert [name for name in heavy if name in loaded] == []


def test_importing_the_bridges_for_events_does_not_load_what_they_lead_to(tmp_path: Path) -> None:
    code = "from outlast.observe import log_events, trace_events"
    assert loaded_by(code, tmp_path) == ["outlast"]


def test_a_host_on_sqlite_runs_without_loading_anything_more(tmp_path: Path) -> None:
    loaded = loaded_by(
        """
        import asyncio
        from outlast import Agent, Host

        class A(Agent):
            async def work(self):
                await self.start_fiber("f", self.step, wait=True)
                await self.storage.put("key", 1)
                return await self.storage.list()

            async def step(self, fiber):
                await fiber.stash(1)

        async def main():
            async with Host(agents=[A], store="sqlite:///a.db") as host:
                assert await host.get(A, "x").work() == {"key": 1}

        asyncio.run(main())
        """,
        tmp_path,
    )
    assert loaded == ["outlast", "pydantic_core", "typing_extensions"]


def test_a_postgresql_url_without_asyncpg_says_what_to_install(tmp_path: Path) -> None:
    code = """
    import asyncio, sys
    sys.modules["asyncpg"] = None  # as if it were not installed
    from outlast import Agent, Host, StoreError

    async def main():
        try:
            await Host(agents=[Agent], store="postgresql://nowhere/x").start()
        except StoreError as error:
            print(error)

    asyncio.run(main())
    """
    result = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install 'outlast[postgres]'" in result.stdout


# --- script/imports ------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The modules of the package without what is in them, to plant things in."""
    source, target = ROOT / "src" / "outlast", tmp_path / "outlast"
    for path in source.rglob("*.py"):
        empty = target / path.relative_to(source)
        empty.parent.mkdir(parents=True, exist_ok=True)
        empty.touch()
    return target


def complaints(package: Path) -> list[str]:
    """What the script says of it; its exit status must say the same."""
    result = subprocess.run(
        [sys.executable, str(SCRIPT), str(package)], capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    found = [] if lines == ["imports point down"] else lines
    assert result.returncode == (1 if found else 0)
    return found


def test_the_package_as_it_is_passes() -> None:
    assert complaints(ROOT / "src" / "outlast") == []


@pytest.mark.parametrize(
    ("module", "line", "complaint"),
    [
        (
            "chat/turn/x.py",
            "from outlast.chat.recovery.judge import Judge",
            "chat/turn may not import chat/recovery (it lies above or beside it)",
        ),
        (
            "chat/inbox/x.py",
            "def f():\n    from outlast.chat.tools.ledger import Ledger",
            "chat/inbox may not import chat/tools (it lies above or beside it)",
        ),
        (
            "store/postgres/x.py",
            "from outlast.store.sqlite.engine import open_sqlite",
            "store/postgres may not import store/sqlite (it lies above or beside it)",
        ),
        (
            "server/cellar/x.py",
            "from outlast.server.limits import Limits",
            "server/cellar is in no room; add it to ROOMS in script/imports",
        ),
        ("store/base.py", "from outlast.host.life.host import Host", "store may not import host"),
        ("core/errors.py", "import outlast.store.base", "core may not import store"),
        ("host/host.py", "from outlast.agent import agent", "host may not import agent"),
        ("agent/agent.py", "from outlast.testing import Worker", "agent may not import testing"),
        ("host/host.py", "def f():\n    import outlast.agent.agent", "host may not import agent"),
        (
            "core/ids.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import outlast.host.life.host",
            "core may not import host",
        ),
        ("host/stub.py", "from . import address", "use an absolute import"),
        ("host/stub.py", "from ..core.errors import OutlastError", "use an absolute import"),
        ("host/stub.py", "from outlast import Agent", "import from the module that owns the name"),
        ("host/stub.py", "import outlast", "import from the module that owns the name"),
        ("tasks/part.py", "from outlast.inspect import views", "tasks may not import inspect"),
        ("tasks/views.py", "from outlast.cli.output import run", "tasks may not import cli"),
        ("tasks/views.py", "from outlast.mcp import part", "tasks may not import mcp"),
        ("think.py", "from outlast.tasks.views import VIEWS", "name it in its Battery instead"),
        ("tasks/part.py", "import outlast.tasks.commands", "name it in its Battery instead"),
    ],
)
def test_an_import_that_does_not_point_down_is_refused_with_its_place(
    package: Path, module: str, line: str, complaint: str
) -> None:
    path = package / module
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(f"\n{line}\n")
    (found,) = complaints(package)
    assert found.startswith(f"{path}:")
    assert complaint in found


@pytest.mark.parametrize("place", ["utils/text.py", "stray.py"])
def test_a_folder_or_module_that_is_in_no_layer_is_refused(package: Path, place: str) -> None:
    path = package / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    (found,) = complaints(package)
    assert f"'{path.relative_to(package).parts[0].removesuffix('.py')}' is in no layer" in found


def test_views_and_commands_of_a_battery_may_use_what_shows_them(package: Path) -> None:
    (package / "tasks").mkdir()
    (package / "tasks" / "views.py").write_text("from outlast.inspect import battery_views\n")
    commands = "from outlast.cli import output\nfrom outlast.tasks.part import x\n"
    (package / "tasks" / "commands.py").write_text(commands)
    assert complaints(package) == []


def test_imports_that_point_down_or_stay_in_their_layer_pass(package: Path) -> None:
    with (package / "agent" / "agent.py").open("a") as file:
        file.write("\nfrom outlast.agent import unit\nimport outlast.core.clock\nimport asyncio\n")
    with (package / "testing" / "virtual.py").open("a") as file:
        file.write("\nfrom outlast.agent.agent import Agent\n")
    assert complaints(package) == []
