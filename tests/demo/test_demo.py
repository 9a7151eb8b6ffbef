"""The embedded model: what it says, and that it goes on where it was cut off. The command around it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import (
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from typer.testing import CliRunner

from outlast import Host
from outlast.chat.model.beginnings import CONTINUE
from outlast.cli.main import app
from outlast.cli.setup import demo as command
from outlast.demo.agent import PAGE, POSTCARDS, Assistant
from outlast.demo.model import left_of, situation
from outlast.demo.script import Result, Said, answer, text
from outlast.demo.settings import EMBEDDED, DemoSettings, model_for


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(Assistant, "settings", DemoSettings(folder=tmp_path, pace=0.0))
    return tmp_path


def asked(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def said(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


def test_it_goes_on_with_the_next_word() -> None:
    messages: list[ModelMessage] = [asked("a story"), said("## The keeper "), asked(CONTINUE)]
    now = situation(messages)
    assert (now.prompt, now.said) == ("a story", "## The keeper ")
    rest = left_of(answer(now.prompt, now.results), now.said).text
    assert f"## The keeper {rest}" == text("story")


def test_what_was_said_before_a_tool_is_not_said_again_after_it() -> None:
    call = ModelResponse(parts=[TextPart("Of course."), ToolCallPart("send_postcard", {}, "c")])
    returned = ToolReturnPart("send_postcard", {"postcards_sent": 4, "file": "f"}, "c")
    now = situation([asked("A postcard!"), call, ModelRequest(parts=[returned])])
    assert now.said == ""
    assert "**4** in `f`" in answer(now.prompt, now.results).text


def test_files_are_counted() -> None:
    prompt = UserPromptPart(["Look", ImageUrl("https://example.org/a.png")])
    now = situation([ModelRequest(parts=[prompt])])
    assert (now.prompt, now.files) == ("Look", 1)
    assert "You sent me a file" in answer(now.prompt, {}, now.files).text


@pytest.mark.parametrize(
    ("prompt", "results", "expected"),
    [
        ("Send a postcard.", {}, "send_postcard"),
        ("Delete my files.", {}, "delete_files"),
        ("What time is it in my browser?", {}, "browser_time"),
        ("Send a postcard.", {"send_postcard": Result(None)}, "do not know whether it was sent"),
        ("Delete it", {"delete_files": Result(False)}, "You did not approve it"),
        ("Delete it", {"delete_files": Result(True, {})}, "with your approval"),
        ("the time", {"browser_time": Result(True, {"timeZone": "UTC"})}, "UTC"),
        ("Think hard", {}, "Fast and safe"),
        ("Show me code", {}, "| `once` | outcome **unknown**"),
        ("Hello", {}, "I am a small model"),
    ],
)
def test_there_is_an_answer_to_everything(prompt: str, results: Any, expected: str) -> None:
    found = answer(prompt, results)
    assert expected in found.text or expected == found.call


def test_every_suggestion_has_an_answer_of_its_own() -> None:
    answers = [answer(each.text, {}) for each in PAGE.suggestions]
    assert len({(each.text, each.call) for each in answers}) == len(answers)
    assert answer("Hello", {}) not in answers


def test_an_answer_that_was_not_ours_is_not_gone_on_with() -> None:
    assert left_of(Said("abc", call="x"), "zzz") == Said("", call="x")


async def test_a_postcard_is_sent_once_and_counted(fast: Path, sqlite_url: str) -> None:
    async with Host(agents=[Assistant], store=sqlite_url) as host:
        alice = host.get(Assistant, "alice")
        for count in (1, 2):
            turn = await alice.save_messages("Send a postcard.")
            assert f"**{count}**" in turn.message.text
        assert len((fast / POSTCARDS).read_text().splitlines()) == 2


async def test_nothing_is_deleted_without_permission(fast: Path, sqlite_url: str) -> None:
    async with Host(agents=[Assistant], store=sqlite_url) as host:
        alice = host.get(Assistant, "alice")
        turn = await alice.save_messages("Delete my files.")
        (call,) = [part for part in turn.message.parts if "toolCallId" in part]
        assert call["state"] == "approval-requested"
        await alice.add_tool_approval(call["toolCallId"], False)
        await alice.wait_until_stable(timeout=60)
        assert "You did not approve it" in (await alice.get_messages())[-1].text


def test_the_model_is_the_one_that_was_asked_for_or_whose_key_is_set() -> None:
    assert model_for(None, {}) == EMBEDDED
    assert model_for(None, {"OPENAI_API_KEY": ""}) == EMBEDDED
    assert model_for(None, {"OPENAI_API_KEY": "k"}).startswith("openai:")
    assert model_for(None, {"ANTHROPIC_API_KEY": "k"}).startswith("anthropic:")
    assert model_for("test:x", {"OPENAI_API_KEY": "k"}) == "test:x"


def test_settings_reach_the_workers_as_they_are(tmp_path: Path) -> None:
    settings = DemoSettings("openai:x", tmp_path, 0.5)
    assert DemoSettings.read(settings.variables()) == settings
    assert DemoSettings.read({}) == DemoSettings()


def test_a_port_that_is_taken_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in DemoSettings().variables().items():
        monkeypatch.setenv(name, value)  # what the command sets is undone with it
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(command, "PORTS", range(port, port + 20))
        assert command.free_port() != port
        result = CliRunner().invoke(app, ["demo", "--port", str(port), "--no-browser"])
        assert result.exit_code == 2
        assert f"port {port} of 127.0.0.1 is in use" in result.output


def test_no_browser_is_looked_for_without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not command.has_browser()
