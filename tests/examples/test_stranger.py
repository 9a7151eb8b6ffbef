"""A stranger's path: ten lines of the README, the wheel, an empty folder, a chat, a kill, and it goes on."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from examples_served import LONG, ROOT, serving, until

ASKED = "Say hello."


def run(*command: str | Path, folder: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def outlast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment of its own: the wheel, what it asks for, and nothing else.

    The wheel is a new one each time. What it asks for stays as long as it asks for the same.
    """
    folder = tmp_path_factory.mktemp("stranger")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, folder=folder)
    (wheel,) = folder.glob("outlast-*.whl")
    asked = "\n".join([sys.version, *asked_for(wheel)])
    environment = ROOT / ".venv-stranger" / hashlib.sha256(asked.encode()).hexdigest()[:16]
    python, command = environment / "bin" / "python", environment / "bin" / "outlast"
    into = [*pip, "--python", python, "install", "--quiet", "--no-compile"]
    if not command.exists():
        shutil.rmtree(environment.parent, ignore_errors=True)
        run(sys.executable, "-m", "venv", "--without-pip", environment, folder=folder)
        run(*into, wheel, folder=folder)
    else:
        run(*into, "--no-deps", "--force-reinstall", wheel, folder=folder)
    return command


def asked_for(wheel: Path) -> list[str]:
    """The requirements of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    return sorted(line for line in lines if line.startswith("Requires-Dist: "))


def test_ten_lines_of_the_readme_outlast_a_kill(outlast: Path, tmp_path: Path) -> None:
    from outlast.demo.script import answer

    block = re.search(
        r"## Ten lines\n+```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert block is not None
    (tmp_path / "assistant.py").write_text(block[1])
    lines = [line for line in block[1].splitlines() if line.strip()]
    assert len(lines) <= 10

    environment = {"PYTHONPATH": "", "HOME": str(tmp_path)}
    with serving(tmp_path, "serve", "assistant.py", program=outlast, **environment) as server:
        said = tmp_path / "said"
        with said.open("wb") as out:
            chat = subprocess.Popen(
                [outlast, "chat", "Assistant", "alice", "--url", server.url, "-m", ASKED],
                cwd=tmp_path,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            until(
                lambda: len(said.read_text().split()) >= 20, "the first words", lambda: server.log
            )
            server.kill()
            before = said.read_text()
            assert chat.poll() is None, before
            server.start()
            assert chat.wait(2 * LONG) == 0, said.read_text()
        finally:
            chat.kill()
        whole = answer(ASKED, {}, 0).text
        assert len(before.split()) < len(whole.split()), "it was killed in the middle"
        heard = [line for line in said.read_text().splitlines() if not line.startswith("(")]
        assert " ".join(" ".join(heard).split()).count(" ".join(whole.split())) == 1, (
            said.read_text()
        )

        told = subprocess.run(
            [outlast, "inspect", "turns", "Assistant", "alice", "--json"],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=LONG,
        )
        assert '"completed"' in told.stdout, told.stdout + told.stderr
