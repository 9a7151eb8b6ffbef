"""Which model can be asked to continue an answer, how it is asked, and what happens if it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.deepseek import DeepSeekProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openrouter import OpenRouterProvider
from pydantic_ai.providers.vllm import VLLMProvider

from outlast.chat.model.beginnings import with_continuation
from outlast.chat.model.continuation import (
    Identity,
    Refusals,
    Ways,
    continuation_for,
    identity_of,
    is_prefill_refused,
)
from outlast.chat.model.errors import ModelFailed
from outlast.chat.model.prefill import (
    instruction,
    last_text,
    prefill_model,
    prefill_settings,
    prefilled,
)
from outlast.chat.types.continuation import ContinuationWay
from providers.anthropic_messages import Anthropic
from providers.dialect import Answer, Dialect
from providers.gemini import Gemini
from providers.openai_chat import OpenAIChat
from providers.server import running, stream

PREFILL = ("prefill", "instruct", "new_message")
INSTRUCT = ("instruct", "new_message")


def who(provider: str, model: str = "m", **fields: Any) -> Identity:
    return Identity(provider, model, **fields)


@pytest.mark.parametrize(
    ("identity", "ways"),
    [
        # servers of open models
        (who("vllm"), PREFILL),
        (who("ollama"), PREFILL),
        (who("groq", "llama-3.3-70b-versatile"), PREFILL),
        (who("openai", host="127.0.0.1"), PREFILL),
        (who("openai", host="localhost"), PREFILL),
        (who("openai", host="10.1.2.3"), PREFILL),
        (who("openai", host="vllm"), PREFILL),
        (who("openai", "gpt-5", host="api.openai.com"), INSTRUCT),
        (who("openai", host="llm.example.com"), INSTRUCT),
        # hosted ones
        (who("mistral", "mistral-large-latest"), PREFILL),
        (who("deepseek", "deepseek-chat"), PREFILL),
        (who("deepseek", "deepseek-reasoner", thinks=True), INSTRUCT),
        (who("moonshotai", "kimi-k2.5"), PREFILL),
        (who("alibaba", "qwen3-max"), PREFILL),
        (who("alibaba", "qwen3-max", thinks=True), INSTRUCT),
        (who("azure", "gpt-4o"), INSTRUCT),
        (who("xai", "grok-4"), INSTRUCT),
        (who("github-copilot", "claude-sonnet-4-5"), INSTRUCT),
        (who("outlast-demo", "embedded"), PREFILL),
        # Claude, up to 4.5
        *(
            (who("anthropic", name), PREFILL)
            for name in ("claude-3-5-sonnet-20241022", "claude-2.1")
        ),
        *((who("anthropic", f"claude-{n}"), PREFILL) for n in ("opus-4-20250514", "sonnet-4-0")),
        *((who("anthropic", f"claude-{n}"), PREFILL) for n in ("opus-4-1-20250805", "haiku-4-5")),
        *((who("anthropic", f"claude-{n}"), PREFILL) for n in ("sonnet-4-5-20250929", "opus-4-5")),
        *((who("anthropic", f"claude-{n}"), INSTRUCT) for n in ("opus-4-6", "sonnet-4-6-20260101")),
        *(
            (who("anthropic", f"claude-{n}"), INSTRUCT)
            for n in ("opus-4-10", "sonnet-5", "fable-5")
        ),
        (who("anthropic", "claude-sonnet-4-5", thinks=True), INSTRUCT),
        (who("anthropic", "something-new"), INSTRUCT),
        (who("bedrock", "claude-sonnet-4-5-20250929", vendor="anthropic"), PREFILL),
        (who("bedrock", "claude-opus-4-6", vendor="anthropic"), INSTRUCT),
        (who("bedrock", "llama3-8b-instruct", vendor="meta"), INSTRUCT),
        # Gemini, up to 3.1, and some
        *(
            (who("google", f"gemini-{n}"), PREFILL)
            for n in ("2.0-flash", "2.5-pro", "3-pro-preview")
        ),
        *((who("google", f"gemini-{n}"), PREFILL) for n in ("3.1-pro-preview", "3.5-flash")),
        *(
            (who("google", f"gemini-{n}"), INSTRUCT)
            for n in ("3.5-flash-lite", "3.6-flash", "4-pro")
        ),
        (who("google", "gemini-2.5-flash", thinks=True), INSTRUCT),
        # through others
        (who("openrouter", "llama-3.3-70b-instruct", vendor="meta-llama"), PREFILL),
        (who("openrouter", "claude-sonnet-4.5", vendor="anthropic"), PREFILL),
        (who("openrouter", "claude-sonnet-4.6", vendor="anthropic"), INSTRUCT),
        (who("openrouter", "gpt-5", vendor="openai"), INSTRUCT),
        (who("litellm", "deepseek-chat", vendor="deepseek"), PREFILL),
        (who("litellm", "gpt-4o", vendor="openai"), INSTRUCT),
        (who("x", "y", is_one=False), INSTRUCT),
        # answers that are kept
        (
            who("openai", "gpt-5", interface="openairesponses", keeps=True),
            ("retrieve", "instruct", "new_message"),
        ),
        (who("openai", "gpt-5", interface="openairesponses"), INSTRUCT),
        (who("openai", "m", interface="openairesponses", host="127.0.0.1"), INSTRUCT),
    ],
)
def test_what_a_model_can_do(identity: Identity, ways: tuple[ContinuationWay, ...]) -> None:
    found = continuation_for(identity)
    assert found.ways == ways
    assert (found.prefill is not None) == ("prefill" in ways)
    assert bool(found.why) == ("prefill" not in ways)


@pytest.mark.parametrize(
    ("identity", "body", "flag", "path", "echoes", "is_certain"),
    [
        (who("vllm"), True, None, None, False, True),
        (who("openai", host="127.0.0.1"), True, None, None, False, False),
        (who("ollama"), False, None, None, False, False),
        (who("mistral"), False, "prefix", None, True, True),
        (who("deepseek", "deepseek-chat"), False, "prefix", "/beta", False, True),
        (who("moonshotai"), False, "partial", None, False, True),
        (who("alibaba"), False, "partial", None, False, True),
        (who("anthropic", "claude-opus-4-5"), False, None, None, False, True),
        (who("google", "gemini-2.0-flash"), False, None, None, False, True),
        (who("openrouter", vendor="qwen"), False, None, None, False, False),
    ],
)
def test_how_it_is_spelled(
    identity: Identity,
    body: bool,
    flag: str | None,
    path: str | None,
    echoes: bool,
    is_certain: bool,
) -> None:
    prefill = continuation_for(identity).prefill
    assert prefill is not None
    wanted = {"continue_final_message": True, "add_generation_prompt": False} if body else {}
    assert prefill.body == wanted
    assert (prefill.flag, prefill.path) == (flag, path)
    assert (prefill.echoes, prefill.is_certain) == (echoes, is_certain)


def test_users_have_the_last_word() -> None:
    claude = who("anthropic", "claude-sonnet-4-5")
    assert continuation_for(claude, wanted="instruct").ways == INSTRUCT
    assert continuation_for(claude, wanted="new_message").ways == ("new_message",)
    assert continuation_for(claude, wanted="prefill").ways == PREFILL
    kept = who("openai", "gpt-5", interface="openairesponses", keeps=True)
    assert continuation_for(kept, wanted="instruct").ways == INSTRUCT
    unknown = continuation_for(who("llm.example.com"), wanted="prefill")
    assert unknown.ways == PREFILL
    assert unknown.prefill is not None
    assert unknown.prefill.is_certain
    newer = continuation_for(who("anthropic", "claude-opus-9"), wanted="prefill")
    assert newer.ways == PREFILL


def test_structured_output_and_thoughts_are_never_prefilled() -> None:
    vllm = who("vllm")
    assert continuation_for(vllm, is_structured=True).ways == INSTRUCT
    assert continuation_for(vllm, is_structured=True, wanted="prefill").ways == INSTRUCT
    assert continuation_for(who("vllm", thinks=True), wanted="prefill").ways == INSTRUCT


def test_a_way_that_has_failed_is_left_out() -> None:
    found = continuation_for(who("vllm")).without("prefill", "it was refused")
    assert found == Ways(INSTRUCT, None, "it was refused")


# --- identity ------------------------------------------------------------------------------------


def chat(name: str, provider: Any, **fields: Any) -> OpenAIChatModel:
    return OpenAIChatModel(name, provider=provider, **fields)


def test_a_model_says_who_it_is() -> None:
    openai = chat("gpt-4o", OpenAIProvider(api_key="k"))
    assert identity_of(openai) == Identity("openai", "gpt-4o", "openaichat", "api.openai.com")
    local = chat("smol", OpenAIProvider("http://127.0.0.1:8080/v1", api_key="k"))
    assert identity_of(local).host == "127.0.0.1"
    assert identity_of(chat("llama3", OllamaProvider("http://x:1/v1"))).provider == "ollama"
    assert identity_of(chat("qwen", VLLMProvider(base_url="http://x/v1"))).provider == "vllm"
    routed = identity_of(chat("meta-llama/llama-3:free", OpenRouterProvider(api_key="k")))
    assert (routed.provider, routed.vendor, routed.model) == ("openrouter", "meta-llama", "llama-3")
    claude = AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(api_key="k"))
    assert continuation_for(identity_of(claude)).ways == PREFILL
    gemini = GoogleModel("gemini-2.0-flash", provider=GoogleProvider(api_key="k"))
    assert continuation_for(identity_of(gemini)).ways == PREFILL
    assert continuation_for(identity_of(WrapperModel(claude))).ways == PREFILL
    assert not identity_of(FallbackModel(claude, gemini)).is_one
    assert continuation_for(identity_of(TestModel())).ways == INSTRUCT


@pytest.mark.parametrize(
    ("name", "vendor", "model"),
    [
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic", "claude-sonnet-4-5-20250929"),
        ("anthropic.claude-3-haiku-20240307-v1:0", "anthropic", "claude-3-haiku-20240307"),
        ("meta.llama3-8b-instruct-v1:0", "meta", "llama3-8b-instruct"),
        ("claude-opus-4-1@20250805", "", "claude-opus-4-1"),
        ("gemini-2.5-pro", "", "gemini-2.5-pro"),
        ("gpt-4.1", "", "gpt-4.1"),
        ("Qwen/Qwen3-8B", "qwen", "qwen3-8b"),
        ("accounts/fireworks/models/kimi-k2", "models", "kimi-k2"),
    ],
)
def test_vendor_and_model_are_told_apart(name: str, vendor: str, model: str) -> None:
    found = identity_of(chat(name, OpenAIProvider(api_key="k")))
    assert (found.vendor, found.model) == (vendor, model)


def test_thinking_is_read_from_settings_and_profile() -> None:
    claude = AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(api_key="k"))
    budget = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 2000}}
    assert not identity_of(claude).thinks
    assert identity_of(claude, budget).thinks  # type: ignore[arg-type]
    assert identity_of(claude, {"thinking": "high"}).thinks
    assert not identity_of(claude, {"thinking": False}).thinks
    assert not identity_of(claude, {"anthropic_thinking": {"type": "disabled"}}).thinks  # type: ignore[typeddict-unknown-key]
    reasoner = chat("deepseek-reasoner", DeepSeekProvider(api_key="k"))
    assert identity_of(reasoner).thinks
    assert not identity_of(chat("deepseek-chat", DeepSeekProvider(api_key="k"))).thinks
    thinking = {"extra_body": {"thinking": {"type": "enabled"}}}
    assert identity_of(chat("deepseek-chat", DeepSeekProvider(api_key="k")), thinking).thinks  # type: ignore[arg-type]


def test_an_answer_is_kept_if_the_provider_was_asked_to() -> None:
    model = OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(api_key="k"))
    assert continuation_for(identity_of(model)).ways == INSTRUCT
    for kept in ({"openai_background": True}, {"openai_store": True}):
        found = continuation_for(identity_of(model, kept))  # type: ignore[arg-type]
        assert found.ways[0] == "retrieve"


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        "This model does not support assistant message prefill. The conversation must end with a user "
        "message.",
        "Requests ending with a model turn are not supported unless the last part is a function response.",
        "The model that you are using requires the last turn in the conversation to be a user message.",
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
        "Assistant response prefill is incompatible with enable_thinking.",
        "messages: final assistant content cannot end with trailing whitespace",
        "Cannot set both add_generation_prompt and continue_final_message to true.",
    ],
)
def test_a_refusal_is_known_by_its_words(message: str) -> None:
    error = ModelHTTPError(400, "m", {"error": {"message": message}})
    assert is_prefill_refused(error)
    failed = ModelFailed("the model m failed")
    failed.__cause__ = error
    assert is_prefill_refused(failed)
    assert not is_prefill_refused(ModelHTTPError(503, "m", {"error": {"message": message}}))


def test_other_errors_are_no_refusals() -> None:
    assert not is_prefill_refused(ModelHTTPError(400, "m", {"error": "prompt is too long"}))
    assert not is_prefill_refused(ModelHTTPError(429, "m", {"error": "rate limit"}))


def test_what_was_refused_is_not_tried_again_by_whoever_remembers_it() -> None:
    identity, refusals = who("openai", "m", host="127.0.0.1"), Refusals()
    assert continuation_for(identity, refusals=refusals).ways == PREFILL
    refusals.add(identity, ModelHTTPError(400, "m", "prefill is incompatible"))
    found = continuation_for(identity, refusals=refusals)
    assert found.ways == INSTRUCT
    assert "prefill is incompatible" in found.why
    assert continuation_for(who("openai", "m", host="10.0.0.1"), refusals=refusals).ways == PREFILL
    assert continuation_for(identity, refusals=Refusals()).ways == PREFILL


# --- requests ------------------------------------------------------------------------------------


def conversation(text: str = "The harbour was qui\n") -> list[ModelMessage]:
    call = ToolCallPart("look", {"at": "sea"}, "call1")
    return [
        ModelRequest(parts=[UserPromptPart("Tell me")]),
        ModelResponse(parts=[TextPart("I look."), call]),
        ModelRequest(parts=[ToolReturnPart("look", "dark", "call1")]),
        ModelResponse(parts=[TextPart(text)]),
    ]


def test_only_the_white_space_at_the_end_is_not_sent() -> None:
    given = conversation()
    sent = prefilled(given)
    assert last_text(sent) == "The harbour was qui"
    assert sent[:-1] == given[:-1]
    assert last_text(given) == "The harbour was qui\n"
    for other in ([], given[:3], given[:2], conversation(" ")):
        with pytest.raises(ValueError, match="must end with text"):
            prefilled(other)


def test_what_the_user_has_set_wins() -> None:
    prefill = continuation_for(who("vllm")).prefill
    assert prefill is not None
    merged = prefill_settings({"temperature": 0.0, "extra_body": {"x": 1}}, prefill)
    assert merged["temperature"] == 0.0
    expected = {"continue_final_message": True, "add_generation_prompt": False, "x": 1}
    assert merged["extra_body"] == expected
    own = prefill_settings({"extra_body": {"continue_final_message": False}}, prefill)
    assert own["extra_body"]["continue_final_message"] is False  # type: ignore[index]


async def sent_to(dialect: Dialect, identity: Identity, model_of: Any = None) -> Any:
    """What a provider is sent that is asked to continue."""
    found = continuation_for(identity)
    assert found.prefill is not None
    async with running() as server:
        server.replies.append(stream(dialect.events(Answer(text=("et.",)))))
        settings = prefill_settings({"max_tokens": 9}, found.prefill)
        parameters = ModelRequestParameters()
        async with (model_of or dialect.model)(server.url) as model:
            asked = prefill_model(model, found.prefill)
            sent = prefilled(conversation())
            async with asked.request_stream(sent, settings, parameters) as answer:
                async for _ in answer:
                    pass
        [part] = answer.get().parts
        assert isinstance(part, TextPart)
        assert part.content == "et."
        return server.requests[0]


async def test_a_server_of_open_models_is_sent_an_open_message() -> None:
    request = await sent_to(OpenAIChat(), who("openai", host="127.0.0.1"))
    assert request.body["messages"][-1] == {"role": "assistant", "content": "The harbour was qui"}
    assert request.body["continue_final_message"] is True
    assert request.body["add_generation_prompt"] is False
    assert [each["role"] for each in request.body["messages"]][-2:] == ["tool", "assistant"]


async def test_a_flag_marks_the_last_message_alone_and_the_model_stays_what_it_was() -> None:
    model: Model | None = None

    def model_of(url: str) -> Model:
        nonlocal model
        model = OpenAIChat().model(url)
        return model

    request = await sent_to(OpenAIChat(), who("moonshotai", "kimi-k2.5"), model_of)
    messages = request.body["messages"]
    assert messages[-1]["partial"] is True
    assert not any("partial" in message for message in messages[:-1])
    assert "_map_messages" not in vars(model)


async def test_deepseek_is_asked_at_its_address_for_this() -> None:
    request = await sent_to(OpenAIChat(), who("deepseek", "deepseek-chat"))
    assert request.path == "/beta/chat/completions"
    assert request.body["messages"][-1]["prefix"] is True


async def test_anthropic_is_sent_the_models_words_last() -> None:
    request = await sent_to(Anthropic(), who("anthropic", "claude-sonnet-4-5"))
    last = request.body["messages"][-1]
    assert last["role"] == "assistant"
    assert last["content"][-1]["text"] == "The harbour was qui"


async def test_google_is_sent_a_last_turn_of_the_model() -> None:
    request = await sent_to(Gemini(), who("google", "gemini-2.0-flash"))
    last = request.body["contents"][-1]
    assert last["role"] == "model"
    assert last["parts"][-1]["text"] == "The harbour was qui"


def test_a_model_that_cannot_is_instructed_with_the_end_of_its_answer() -> None:
    messages = conversation()
    asked = with_continuation(messages, text=instruction(messages))
    part = asked[-1].parts[-1]
    assert isinstance(part, UserPromptPart)
    assert "<tail>The harbour was qui\n</tail>" in str(part.content)
