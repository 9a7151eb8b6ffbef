"""What a supervisor has done before it forks, so that a worker need not: a client waits for that."""

from __future__ import annotations

import gc
import http.client
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.serving.test_supervisor import Supervised, supervised, until
from outlast.cli.serving.imports import reduced_gc

APP = """
import gc, sys
from starlette.responses import JSONResponse
from pydantic_ai.models.test import TestModel
from outlast import App, Think

BEFORE = set(sys.modules)

class Probe(Think):
    model = TestModel(custom_output_text="Hello.")

    async def on_request(self, request):
        imported = sorted(set(sys.modules) - BEFORE)
        frozen = gc.get_freeze_count()
        return JSONResponse(dict(imported=imported, threshold=gc.get_threshold(), frozen=frozen))

app = App(agents=[Probe], store="sqlite:///probe.db")
"""
SLOW = ("outlast", "pydantic", "pydantic_ai", "genai_prices", "starlette", "uvicorn", "uvloop")


def chat(server: Supervised) -> bytes:
    said = {"role": "user", "id": "m1", "parts": [{"type": "text", "text": "Hello?"}]}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        body = json.dumps({"messages": [said]})
        connection.request("POST", "/agents/probe/a/chat", body)
        return connection.getresponse().read()
    finally:
        connection.close()


def test_a_worker_imports_no_library_between_its_module_and_its_first_answer(
    tmp_path: Path,
) -> None:
    with supervised(tmp_path, app=APP) as server:
        assert b"[DONE]" in chat(server)
        about = server.ask()
    assert [name for name in about["imported"] if name.partition(".")[0] in SLOW] == []


PROVIDERS = """
import os, sys
from outlast.cli.serving import imports
for name in (*imports.AT_ONCE, *imports.SOON):
    imports.load(name)
imports.load_prices()
assert imports.can_fork()
before = set(sys.modules)
os.environ |= dict(OPENAI_API_KEY="-", ANTHROPIC_API_KEY="-")
from pydantic_ai.models import infer_model
for name in ("openai:gpt-5", "openai-chat:gpt-5", "anthropic:claude-sonnet-5"):
    infer_model(name)
print(*sorted(set(sys.modules) - before))
"""


def test_a_provider_leaves_nothing_to_import_either() -> None:
    done = subprocess.run([sys.executable, "-c", PROVIDERS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    owners = ("openai", "anthropic", "pydantic_ai", "genai_prices", "httpx2")
    assert [name for name in done.stdout.split() if name.partition(".")[0] in owners] == []


@pytest.mark.parametrize("options", [(), ("--preload",), ("--no-supervisor",)])
def test_the_collector_leaves_imports_alone_and_works_again(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    with supervised(tmp_path, *options, app=APP) as server:
        until(lambda: server.ask()["frozen"] > 10_000)
        assert tuple(server.ask()["threshold"]) == gc.get_threshold()


def test_nothing_is_collected_while_modules_are_imported() -> None:
    before = gc.get_threshold()
    collections: list[str] = []

    def noted(phase: str, _: object) -> None:
        collections.append(phase)

    gc.callbacks.append(noted)
    try:
        with reduced_gc():
            made: list[list[int]] = [[] for _ in range(10 * before[0])]
        made += [[] for _ in range(before[0] // 2)]  # nor are they looked at right afterwards
    finally:
        gc.callbacks.remove(noted)
        gc.unfreeze()
    assert collections == []
    assert gc.get_threshold() == before


def test_an_application_may_set_the_collector_itself() -> None:
    before = gc.get_threshold()
    try:
        with reduced_gc():
            gc.set_threshold(5000, 20, 20)
        assert gc.get_threshold() == (5000, 20, 20)
        with pytest.raises(RuntimeError), reduced_gc():
            raise RuntimeError("it cannot be imported")
        assert gc.get_threshold() == (5000, 20, 20)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
