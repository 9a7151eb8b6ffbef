"""Whatever is stored, the request that is made of it is one that every provider takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from chat.context.test_history import assistant, tool, user
from chat.model.test_model_providers import HELLO, WEATHER, Dialect, ask, every_dialect, serving
from outlast.chat.context.history import WORDLESS, to_model_messages
from outlast.chat.model.beginnings import BEGINNING, CONTINUE
from outlast.chat.model.request import (
    request_messages,
    request_parameters,
    request_settings,
    tool_choice_of,
)
from outlast.testing import ScriptedModel
from providers.server import stream

SYSTEM = "Be brief."
STATES = [
    "input-streaming",
    "input-available",
    "approval-requested",
    "approval-responded",
    "output-available",
    "output-error",
    "output-denied",
    None,
]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def system(words: str) -> dict[str, Any]:
    return {"id": "s", "role": "system", "parts": [text(words)]}


def sent(stored: list[Any]) -> list[ModelMessage]:
    model = ScriptedModel("x")
    messages = to_model_messages(stored, instructions=SYSTEM).messages
    return request_messages(model, messages, request_parameters(messages, None))


# --- every conversation --------------------------------------------------------------------------

OF_A_PROVIDER = {"outlast": {"provider_name": "p", "model_name": "m"}}
STEP = {"type": "step-start", "providerMetadata": OF_A_PROVIDER}
TEXTS = st.sampled_from(["", " ", "\n", "Hello"])
TOOLS = st.builds(
    tool,
    st.sampled_from(STATES) | st.just("output-available"),
    st.sampled_from(["c1", "c2", "c3"]),
    output=st.sampled_from([None, {}, "sunny", [1]]),
    errorText=st.sampled_from(["", "boom"]),
    providerExecuted=st.sampled_from([False, False, False, True]),
)
PARTS = st.one_of(
    st.builds(text, TEXTS),
    TOOLS,
    st.sampled_from(
        [
            {"type": "step-start"},
            STEP,
            STEP,
            STEP,
            {"type": "reasoning", "text": "Hm"},
            {"type": "file", "url": "https://e.org/x"},
            {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,aGk="},
            {"type": "file"},
            {"type": "data-place", "data": 1},
            {"type": "novel"},
            {},
            None,
        ]
    ),
)
MESSAGES = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", *["assistant"] * 4, "system", "novel"]),
        "parts": st.lists(PARTS, max_size=5),
    }
)


@pytest.mark.invariant("E20")
@given(st.lists(MESSAGES, max_size=6))
@settings(max_examples=300)
def test_every_conversation_makes_a_request_that_can_be_answered(stored: list[Any]) -> None:
    messages = sent(stored)
    first, last = messages[0], messages[-1]
    assert isinstance(first, ModelRequest)
    assert isinstance(last, ModelRequest)
    assert last.instructions == SYSTEM
    assert any(part.part_kind == "user-prompt" for part in first.parts)
    assert any(part.part_kind in ("user-prompt", "tool-return") for part in last.parts)
    for before, after in zip(messages, messages[1:], strict=False):
        assert before.kind != after.kind
    seen: list[str] = []
    for message, following in zip(messages, [*messages[1:], None], strict=True):
        assert message.parts
        calls = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
        if calls:
            assert following is not None
            returned = [p.tool_call_id for p in following.parts if isinstance(p, ToolReturnPart)]
            assert returned == calls
        seen += calls
        for part in message.parts:
            if isinstance(part, TextPart | UserPromptPart) and isinstance(part.content, str):
                assert part.content.strip()
    assert len(seen) == len(set(seen))


SHAPES: dict[str, list[Any]] = {
    "nothing": [],
    "an empty text": [user("")],
    "white space": [user(" \n ")],
    "a part without words": [user({"type": "data-place", "data": 1})],
    "a link to nobody knows what": [user({"type": "file", "url": "https://e.org/x"})],
    "a greeting": [assistant(text("Welcome."))],
    "a greeting and no words": [assistant(text("Welcome.")), user("")],
    "only a system message": [system("Be kind.")],
    "a note after an answer": [user("Hi"), assistant(text("Yes.")), system("It is late.")],
    "a call without an outcome": [user("Hi"), assistant(tool("input-available"))],
    "a call as a greeting": [assistant(tool("output-available", output=1))],
    "calls with one id": [
        user("Hi"),
        assistant(tool("output-available", output=1)),
        user("Again"),
        assistant(tool("output-available", output=2)),
    ],
    "white space before a call": [
        user("Hi"),
        assistant(text("\n\n"), tool("output-available", output=1)),
    ],
    "an answer in two pieces and then a call": [
        user("Hi"),
        assistant(STEP, text("Let me"), STEP, text(" see.")),
        assistant(STEP, tool("output-available", output=1)),
    ],
}


@pytest.mark.parametrize("shape", SHAPES)
@every_dialect
async def test_no_provider_is_sent_what_it_refuses(dialect: Dialect, shape: str) -> None:
    messages = to_model_messages(SHAPES[shape], instructions=SYSTEM).messages
    async with serving(dialect, stream(dialect.events(HELLO))) as (server, model):
        await ask(model, messages, parameters=WEATHER)
    [body] = server.bodies
    dialect.check(body)
    assert json.dumps(body).count(SYSTEM) == 1


def test_a_user_without_words_is_not_answered_with_a_continuation() -> None:
    greeting = assistant(text("Welcome."))
    [_, _, last] = sent([greeting, user("")])
    assert [part.content for part in last.parts] == [WORDLESS]  # type: ignore[union-attr]
    [first, _, last] = sent([greeting])
    assert [part.content for part in first.parts] == [BEGINNING]  # type: ignore[union-attr]
    assert [part.content for part in last.parts] == [CONTINUE]  # type: ignore[union-attr]


def test_answers_of_different_providers_stay_apart() -> None:
    def said(words: str, provider: str | None) -> ModelResponse:
        return ModelResponse([TextPart(words)], provider_name=provider)

    def providers(*answers: ModelResponse) -> list[str | None]:
        messages = [ModelRequest.user_text_prompt("Hi"), *answers]
        made = request_messages(ScriptedModel("x"), messages, ModelRequestParameters())
        return [each.provider_name for each in made if isinstance(each, ModelResponse)]

    assert providers(said("a", "p"), said("b", "p")) == ["p"]
    assert providers(said("a", None), said("b", "p"), said("c", None)) == ["p"]
    assert providers(said("a", "p"), said("b", "q")) == ["p", "q"]


def test_a_blank_text_that_carries_something_is_kept() -> None:
    signed = TextPart("", provider_name="google", provider_details={"thought_signature": "x"})
    answer = ModelResponse([ThinkingPart("Hm"), TextPart(" "), signed, TextPart("", id="msg_1")])
    messages = [ModelRequest.user_text_prompt("Hi"), answer]
    [_, kept, _] = request_messages(ScriptedModel("x"), messages, ModelRequestParameters())
    assert kept.parts == [answer.parts[0], *answer.parts[2:]]


# --- instructions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_messages", "given", "expected"),
    [
        ("one", None, "one"),
        ("one", "two", "two"),
        (None, "two", "two"),
        (None, None, None),
        ("one", "", None),
        (None, " ", None),
    ],
)
async def test_whose_instructions_count(
    of_messages: str | None, given: str | None, expected: str | None
) -> None:
    model = ScriptedModel("Hello.")
    prompt = ModelRequest([UserPromptPart("Hi")], instructions=of_messages)
    await ask(model, [prompt], instructions=given)
    assert (model.requests[0].instructions or None) == expected


# --- tool choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("weather", ["weather"]),
        (("weather", "time"), ["weather", "time"]),
        ([], []),
    ],
)
def test_a_tool_choice_is_a_word_or_names(given: Any, taken: Any) -> None:
    assert tool_choice_of(given) == taken


def test_a_tool_choice_that_names_no_tool_is_refused() -> None:
    def chosen(*names: str) -> Any:
        return request_settings(model, {"tool_choice": list(names)}, WEATHER)["tool_choice"]

    model = ScriptedModel("x")
    assert chosen("weather") == ["weather"]
    assert chosen("wether", "weather") == ["weather"]
    with pytest.raises(ValueError, match="must name tools of this request .we.*got 'wether'"):
        chosen("wether")
    with pytest.raises(ValueError, match="must name tools of this request .none"):
        request_settings(model, {"tool_choice": ["a"]}, ModelRequestParameters())


@every_dialect
async def test_a_tool_can_be_chosen_by_its_name(dialect: Dialect) -> None:
    from outlast.chat.model.settings import model_settings

    more = ToolDefinition(name="time", parameters_json_schema={"type": "object", "properties": {}})
    tools = ModelRequestParameters(function_tools=[*WEATHER.function_tools, more])
    async with serving(dialect, stream(dialect.events(HELLO))) as (server, model):
        await ask(model, settings=model_settings(tool_choice="weather"), parameters=tools)
    body = server.bodies[0]
    choice = body.get("tool_choice") or body["toolConfig"]
    assert "weather" in json.dumps(choice)
    assert "time" not in json.dumps(choice)
