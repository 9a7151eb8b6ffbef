"""Whoever chats never sees how a model is set up, or what its provider says: the store and the log do."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
from tabs import served

from outlast import Think
from outlast.inspect import views
from outlast.testing import ScriptedModel, Step

LONG = 60.0
ANSWER = json.dumps({"error": {"message": "Incorrect API key provided: sk-SECRET"}}).encode()
INTERNALS = (
    "API_KEY",
    "SECRET",
    "127.0.0.1:",
    "pip install",
    "gpt-",
    "claude-",
    "openai",
    "nthropic",
)


@pytest.fixture
def refusing() -> Iterator[int]:
    """A provider that answers every request with a 401."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(65536)
                    head = f"HTTP/1.1 401 Unauthorized\r\ncontent-length: {len(ANSWER)}\r\n"
                    more = "content-type: application/json\r\nconnection: close\r\n\r\n"
                    client.sendall((head + more).encode() + ANSWER)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


class Chatty(Think):
    model: Any = "anthropic:claude-sonnet-5"
    max_retries = 0

    def get_tools(self) -> Any:
        return [look, crash]


async def look() -> str:
    """Look."""
    return "seen"


async def crash() -> str:
    """Fail."""
    raise ConnectionError("cannot connect to postgresql://admin:SECRET@db")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


CASES = {
    "no key": ("anthropic:claude-sonnet-5", {}, "ANTHROPIC_API_KEY"),
    "no such model": ("nonsense:gpt-5", {}, "nonsense"),
    "a wrong key": ("openai-chat:gpt-5", {"OPENAI_API_KEY": "sk-SECRET"}, "sk-SECRET"),
    "an address that nobody listens on": (
        "openai-chat:gpt-5",
        {"OPENAI_API_KEY": "sk-SECRET", "OPENAI_BASE_URL": "closed"},
        "",
    ),
    "an error of the code": (
        ScriptedModel(Step.fails(KeyError("SECRET"))),
        {},
        "SECRET",
    ),
    "a failure after a whole call": (
        ScriptedModel(Step.calls("look") + Step.fails(RuntimeError("SECRET in the stream"))),
        {},
        "SECRET in the stream",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_no_client_sees_the_reason_and_store_and_log_have_it(
    case: str,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refusing: int,
) -> None:
    model, environment, reason = CASES[case]
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    given = {"OPENAI_BASE_URL": f"http://127.0.0.1:{refusing}/v1", **environment}
    if given["OPENAI_BASE_URL"] == "closed":
        given["OPENAI_BASE_URL"] = f"http://127.0.0.1:{free_port()}/v1"
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Chatty, "model", model)
    caplog.set_level(logging.INFO)
    said = {"role": "user", "id": "u", "parts": [{"type": "text", "text": "Hi"}]}
    async with (
        served(Chatty, url=sqlite_url) as server,
        server.tab(path="/agents/chatty/a") as tab,
        httpx.AsyncClient(timeout=LONG) as http,
    ):
        done = await tab.answered("r1", "Hi")
        streamed = await http.post(
            server.at("b", "chat", agent="chatty"),
            json={"messages": [said]},
            headers={"idempotency-key": "r2"},
        )
        submitted = await http.post(
            server.at("c", "submissions", agent="chatty"), json={"messages": [said]}
        )
        await server.app.host.until_settled()
        seen = [json.dumps(tab.frames), streamed.text]
        for name, request in (("a", "r1"), ("b", "r2"), ("c", submitted.json()["id"])):
            for rest in (
                "get-messages",
                f"chat/stream?requestId={request}",
                f"submissions/{request}",
            ):
                seen.append((await http.get(server.at(name, rest, agent="chatty"))).text)
        async with server.tab(path="/agents/chatty/a") as late:
            await late.wait("cf_agent_chat_messages")
            seen.append(json.dumps(late.frames))
        turns = await views.turns(server.app.host.store)
        (turn,) = [each for each in turns if each.id == "r1"]
        assert turn.outcome == "error"
        assert turn.error is not None
        assert reason in turn.error, "the inspector has it"
    assert done["error"] is True
    assert done["body"].endswith("."), "a sentence"
    for shown in seen:
        for internal in INTERNALS:
            assert internal not in shown, (internal, shown)
    logged = "\n".join(record.getMessage() for record in caplog.records if record.levelno >= 40)
    assert f"turn r1 failed: {turn.error}" in logged, "so does the log"


@pytest.mark.parametrize("for_model", [False, True])
async def test_no_client_sees_what_a_tool_has_raised(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, for_model: bool
) -> None:
    model = ScriptedModel(Step.calls("crash"), "Sorry.", by="request", repeat=True)
    monkeypatch.setattr(Chatty, "model", model)
    monkeypatch.setattr(Chatty, "tool_error_details", for_model)
    async with (
        served(Chatty, url=sqlite_url) as server,
        server.tab(path="/agents/chatty/a") as tab,
        httpx.AsyncClient(timeout=LONG) as http,
    ):
        await tab.answered("r1", "Hi")
        seen = [json.dumps(tab.frames)]
        for rest in ("get-messages", "chat/stream?requestId=r1"):
            seen.append((await http.get(server.at("a", rest, agent="chatty"))).text)
        async with server.tab(path="/agents/chatty/a") as late:
            await late.wait("cf_agent_chat_messages")
            seen.append(json.dumps(late.frames))
    for shown in seen:
        assert "The tool failed. (error_" in shown
        assert "SECRET" not in shown
    assert ("SECRET" in str(model.requests[-1].messages)) == for_model
