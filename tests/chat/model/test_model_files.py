"""A file that a model cannot read, or cannot get, does not stop the conversation that it is part of."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest

from chat.context.test_history import user
from chat.model.test_model_providers import HELLO, Anthropic, Dialect, ask, every_dialect, serving
from outlast.chat.context.history import to_model_messages
from outlast.chat.model.errors import ModelFailed
from outlast.chat.model.files import with_readable_files, without_links
from outlast.testing import ScriptedModel, Step
from providers.gemini import Gemini
from providers.openai_chat import OpenAIChat
from providers.openai_responses import OpenAIResponses
from providers.server import stream

DEAD = "https://127.0.0.1:1/x"  # nobody is there, and private addresses are not asked


def file(media_type: str, data: bytes = b"hi") -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {
        "type": "file",
        "mediaType": media_type,
        "url": f"data:{media_type};base64,{encoded}",
    }


def link(media_type: str, url: str = DEAD) -> dict[str, Any]:
    return {"type": "file", "mediaType": media_type, "url": url}


EVERY_KIND = [
    "image/png",
    "image/jpg",
    "image/svg+xml",
    "image/heic",
    "audio/mpeg",
    "audio/webm",
    "video/mp4",
    "application/pdf",
    "application/zip",
    "application/json",
    "application/octet-stream",
    "text/plain",
    "text/csv",
    "text/x-python",
    "novel/novel",
]


@pytest.mark.parametrize("media_type", EVERY_KIND)
@every_dialect
async def test_a_file_of_any_kind_leaves_a_request_that_can_be_sent(
    dialect: Dialect, media_type: str
) -> None:
    for data in (b"hi", b"\xff\xff"):
        messages = to_model_messages([user("Look", file(media_type, data))]).messages
        async with serving(dialect, stream(dialect.events(HELLO))) as (server, model):
            await ask(model, messages)
            dialect.check(server.bodies[0])
            assert "Look" in json.dumps(server.bodies[0])


@pytest.mark.parametrize(
    ("dialect", "media_type", "is_read"),
    [
        (OpenAIChat(), "image/png", True),
        (OpenAIChat(), "image/jpg", True),
        (OpenAIChat(), "image/heic", False),
        (OpenAIChat(), "audio/mpeg", False),  # this model; others of OpenAI do
        (OpenAIChat(), "video/mp4", False),
        (OpenAIChat(), "application/pdf", True),
        (OpenAIResponses(), "audio/mpeg", False),
        (OpenAIResponses(), "application/pdf", True),
        (Anthropic(), "image/png", True),
        (Anthropic(), "application/pdf", True),
        (Anthropic(), "audio/mpeg", False),
        (Anthropic(), "application/zip", False),
        (Gemini(), "image/heic", True),
        (Gemini(), "video/mp4", True),
        (Gemini(), "audio/mpeg", True),
        (Gemini(), "application/zip", False),
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_files_are_sent_to_models_that_can_read_them(
    dialect: Dialect, media_type: str, is_read: bool
) -> None:
    messages = to_model_messages([user(file(media_type))]).messages
    profile = dialect.model("http://127.0.0.1:1").profile
    after = with_readable_files(messages, [profile])
    assert (after[0] is messages[0]) is is_read
    if not is_read:
        note = f"(a file that this model cannot read: {media_type}, 2 bytes)"
        assert after[0].parts[0].content == [note]  # type: ignore[union-attr]
        assert messages[0].parts[0].content != [note]  # type: ignore[union-attr]


def test_a_text_is_read_by_every_model() -> None:
    csv = to_model_messages([user(file("text/csv", b"a,b"))]).messages
    [request] = with_readable_files(csv, [Anthropic().model("http://127.0.0.1:1").profile])
    assert request.parts[0].content == ["(a file, text/csv:)\na,b"]  # type: ignore[union-attr]


def test_a_file_is_read_if_all_models_behind_one_can() -> None:
    video = to_model_messages([user(file("video/mp4"))]).messages
    profiles = [each.model("http://127.0.0.1:1").profile for each in (Gemini(), Anthropic())]
    assert with_readable_files(video, profiles[:1]) == video
    assert with_readable_files(video, profiles) != video


@pytest.mark.parametrize("media_type", ["image/png", "application/pdf", "video/mp4"])
@every_dialect
async def test_a_link_that_cannot_be_followed_is_named_instead(
    dialect: Dialect, media_type: str
) -> None:
    """Some providers' classes fetch it themselves; for others the provider does, and refuses."""
    messages = to_model_messages([user("Look", link(media_type)), user("And?")]).messages
    refusal = dialect.error("rejected")
    assert refusal is not None
    async with serving(dialect, refusal, stream(dialect.events(HELLO))) as (server, model):
        server.replies = [refusal, stream(dialect.events(HELLO))]
        if media_type == "video/mp4" or dialect.name == "google":
            server.replies.pop(0)  # it is found out before anything is sent
        elif (dialect.name, media_type) == ("openai-chat", "application/pdf"):
            server.replies.pop(0)
        _, answer = await ask(model, messages, max_retries=0)
    assert answer.response.text == "Hello there."
    assert "that this model cannot read" in json.dumps(server.bodies[-1])
    assert DEAD in json.dumps(server.bodies[-1])


async def test_a_request_that_is_refused_for_something_else_is_asked_without_links_once() -> None:
    dialect = Anthropic()
    messages = to_model_messages([user("Look", link("image/png"))]).messages
    refusal = dialect.error("rejected")
    async with serving(dialect, refusal) as (server, model):
        with pytest.raises(ModelFailed) as caught:
            await ask(model, messages)
        assert len(server.requests) == 2
    assert caught.value.kind == "rejected"
    overflow = dialect.error("context_overflow")
    async with serving(dialect, overflow) as (server, model):
        with pytest.raises(ModelFailed):
            await ask(model, messages)
        assert len(server.requests) == 1


async def test_what_was_said_is_not_said_again_without_links() -> None:
    messages = to_model_messages([user("Look", link("image/png"))]).messages
    model = ScriptedModel(Step.text("So far ") + Step.fails("rejected"), "Again", by="request")
    with pytest.raises(ModelFailed):
        await ask(model, messages)
    assert len(model.requests) == 1


def test_messages_without_links_stay_as_they_are() -> None:
    messages = to_model_messages([user("Look", file("image/png"))]).messages
    assert without_links(messages) is None
    assert without_links([ModelRequest.user_text_prompt("Hi")]) is None
