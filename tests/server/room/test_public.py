"""Clients get chunks and messages without what only the server needs: who the provider is, and its ids."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest
from tabs import served

from outlast import Think
from outlast.chat.message.reducer import MessageBuilder
from outlast.server.public import public_chunk, public_message
from outlast.testing import ScriptedModel, Step

OURS = {"provider_url": "https://internal", "model_name": "m", "signature": "s"}
CALL: dict[str, Any] = {"type": "tool-f", "toolCallId": "c", "state": "input-available"}
UNKNOWN = {"outlast": {"outcome": "unknown"}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "finish-step", "providerMetadata": {"outlast": OURS}}, {"type": "finish-step"}),
        (
            {
                "type": "text-end",
                "id": "t",
                "providerMetadata": {"outlast": OURS, "mine": {"n": 1}},
            },
            {"type": "text-end", "id": "t", "providerMetadata": {"mine": {"n": 1}}},
        ),
        (
            {**CALL, "callProviderMetadata": {"outlast": OURS}},
            CALL,
        ),
        (
            {**CALL, "resultProviderMetadata": {"outlast": {**OURS, "outcome": "unknown"}}},
            {**CALL, "resultProviderMetadata": UNKNOWN},
        ),
        ({**CALL, "resultProviderMetadata": {"outlast": "odd"}}, CALL),
    ],
)
def test_our_metadata_is_left_out_and_the_rest_stays(given: Any, expected: Any) -> None:
    assert json.loads(public_chunk(compact(given))) == expected
    message = {"id": "m", "role": "assistant", "metadata": {"a": 1}, "parts": [given]}
    assert public_message(message) == {**message, "parts": [expected]}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": 'say "outlast":{"model_name":1}'},
        {"type": "text", "text": "hi", "providerMetadata": {"mine": {"outlast": {"a": 1}}}},
        {**CALL, "output": {"outlast": {"model_name": "the application's own"}}},
        {"type": "data-x", "data": {"providerMetadata": {"outlast": {"a": 1}}}},
    ],
)
def test_what_has_no_metadata_of_ours_is_not_touched(part: dict[str, Any]) -> None:
    text = compact(part)
    assert public_chunk(text) is text
    message = {"id": "m", "role": "assistant", "parts": [part]}
    assert public_message(message) is message


@pytest.mark.parametrize("message", [{"id": "m"}, {"id": "m", "parts": None}, {"parts": [1, None]}])
def test_an_odd_message_leaves_as_it_is(message: dict[str, Any]) -> None:
    assert public_message(message) is message


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


class Signing(Think):
    """Its answers are signed, and come from a model that has a name."""

    model = ScriptedModel(
        Step.reasoning("Hm", signature="SECRET-SIGNATURE") + Step.calls("look"),
        Step.reasoning("So", signature="SECRET-SIGNATURE") + Step.text("done", delay=0.01),
        name="SECRET-MODEL",
    )

    def get_tools(self) -> Any:
        return [look]


async def look() -> str:
    """Look."""
    return "seen"


async def test_no_exit_shows_the_provider_and_the_store_keeps_it(sqlite_url: str) -> None:
    path = "/agents/signing/a"
    async with served(Signing, url=sqlite_url) as server, server.tab(path=path) as tab:
        await tab.answered("r1", "look")
        async with server.tab(path=path) as late, httpx.AsyncClient() as http:
            await late.wait("cf_agent_chat_messages")
            answered = await http.get(server.at("a", "get-messages", agent="signing"))
            events = await http.get(
                server.at("a", "chat", "stream", agent="signing"), params={"requestId": "r1"}
            )
            agent = server.app.host.get(Signing, "a")
            kept = json.dumps([message.raw for message in await agent.get_messages()])
            for secret in ("SECRET-SIGNATURE", "SECRET-MODEL"):
                assert secret in kept
                for shown in (tab.frames, late.frames, answered.text, events.text):
                    assert secret not in json.dumps(shown)
        builder = MessageBuilder()
        for chunk in tab.chunks("r1"):
            builder.apply(compact(chunk))
        assert builder.message()["parts"] == answered.json()[-1]["parts"]
