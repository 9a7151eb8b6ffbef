"""Answers of a type, asked of each provider in the way that it understands, with tools and without."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, RootModel
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.tools import ToolDefinition

from chat.model.test_model_providers import (
    HI,
    WEATHER,
    Answer,
    Call,
    Dialect,
    ask,
    every_dialect,
    serving,
    texts,
)
from outlast.chat.model.answer import AnswersByCall
from outlast.chat.model.output import ANSWER, OutputInvalid, OutputType, output_mode
from outlast.testing import ScriptedModel
from providers.gemini import Gemini
from providers.server import stream


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")
    name: str
    people: int


class Tree(BaseModel):
    branches: list[Tree] = []


ROME = {"name": "Rome", "people": 3}


def given(dialect: Dialect, parameters: ModelRequestParameters, value: Any) -> Answer:
    """The answer as this provider gives it."""
    if parameters.output_mode == "tool":
        return Answer(calls=(Call("f1", parameters.output_tools[0].name, value),))
    return Answer(text=(json.dumps(value),))


# --- the providers -------------------------------------------------------------------------------


@pytest.mark.parametrize("tools", [ModelRequestParameters(), WEATHER], ids=["alone", "with tools"])
@every_dialect
async def test_an_answer_of_a_type(dialect: Dialect, tools: ModelRequestParameters) -> None:
    output = OutputType(City)
    async with serving(dialect) as (server, model):
        parameters = output.asked_of(model, tools)
        server.replies.append(stream(dialect.events(given(dialect, parameters, ROME))))
        events, answer = await ask(model, parameters=parameters)
    assert output.value_of(answer.response) == City(**ROME)
    assert json.loads(texts(events)) == ROME
    assert answer.response.finish_reason == "stop"
    body = json.dumps(server.bodies[0])
    assert '"people"' in body, "the schema is sent"
    assert ("weather" in body) == bool(tools.function_tools)


@every_dialect
async def test_an_answer_of_a_type_after_a_tool(dialect: Dialect) -> None:
    output = OutputType(City)
    async with serving(dialect) as (server, model):
        parameters = output.asked_of(model, WEATHER)
        server.replies += [
            stream(dialect.events(Answer(calls=(Call("c1", "weather", {"city": "Rome"}),)))),
            stream(dialect.events(given(dialect, parameters, ROME))),
            stream(dialect.events(given(dialect, parameters, ROME))),
        ]
        _, first = await ask(model, parameters=parameters)
        assert output.value_of(first.response) is None
        [call] = first.response.tool_calls
        result = ModelRequest([ToolReturnPart("weather", "sunny", call.tool_call_id)])
        _, second = await ask(model, [*HI, first.response, result], parameters=parameters)
        assert output.value_of(second.response) == City(**ROME)
        # The answer is part of the conversation, as a text.
        history = [*HI, first.response, result, second.response, *HI]
        await ask(model, history, parameters=parameters)
        dialect.check(server.bodies[-1])
        assert "Rome" in json.dumps(server.bodies[-1])


async def test_gemini_may_say_something_before_it_answers() -> None:
    dialect = Gemini()
    output = OutputType(list[City])
    async with serving(dialect) as (server, model):
        parameters = output.asked_of(model, WEATHER)
        assert parameters.output_mode == "tool"
        call = Call("f1", ANSWER, {"response": [ROME]})
        server.replies.append(stream(dialect.events(Answer(text=("Here: ",), calls=(call,)))))
        events, answer = await ask(model, parameters=parameters)
        mode = server.bodies[0]["toolConfig"]["functionCallingConfig"]["mode"]
    assert mode == "ANY", "it has to call something"
    assert output.value_of(answer.response) == [City(**ROME)]
    assert texts(events).startswith("Here: {")
    assert [event.index for event in events if isinstance(event, PartEndEvent)] == [0, 1]


# --- how to ask ----------------------------------------------------------------------------------

FORMATS = {"supports_json_schema_output": True}
GEMINI_2 = {**FORMATS, "google_supports_tool_combination": False}
GEMINI_3 = {**FORMATS, "google_supports_tool_combination": True}
NATIVE_TOOLS = ModelRequestParameters(native_tools=[WebSearchTool()])


@pytest.mark.parametrize(
    ("profiles", "parameters", "mode"),
    [
        ([FORMATS], ModelRequestParameters(), "native"),
        ([FORMATS], WEATHER, "native"),
        ([GEMINI_2], ModelRequestParameters(), "native"),
        ([GEMINI_2], WEATHER, "tool"),
        ([GEMINI_2], NATIVE_TOOLS, "prompted"),
        ([GEMINI_3], WEATHER, "native"),
        ([GEMINI_3], NATIVE_TOOLS, "native"),
        ([{}], ModelRequestParameters(), "tool"),
        ([{}], WEATHER, "tool"),
        ([{"supports_tools": False}], ModelRequestParameters(), "prompted"),
        ([FORMATS, {}], WEATHER, "tool"),
        ([FORMATS, {"supports_tools": False}], ModelRequestParameters(), "prompted"),
    ],
)
def test_how_a_type_is_asked_for(profiles: Any, parameters: Any, mode: str) -> None:
    assert output_mode(profiles, parameters) == mode


def test_several_models_behind_one_are_asked_alike() -> None:
    model = FallbackModel(ScriptedModel("x"), ScriptedModel("x", profile={**GEMINI_2}))  # type: ignore[arg-type]
    assert OutputType(City).asked_of(model, WEATHER).output_mode == "tool"


def test_a_tool_of_the_user_keeps_its_name() -> None:
    taken = ToolDefinition(name=ANSWER, parameters_json_schema={"type": "object"})
    parameters = ModelRequestParameters(function_tools=[taken])
    model = ScriptedModel("x", profile={"supports_json_schema_output": False})
    asked = OutputType(City).asked_of(model, parameters)
    assert [tool.name for tool in asked.output_tools] == [f"{ANSWER}_"]
    assert not asked.allow_text_output


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (City, json.dumps(ROME), City(**ROME)),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Tree, '{"branches": [{}]}', Tree(branches=[Tree()])),
        (list[int], '{"response": [1]}', [1]),
        (list[int], "[1]", [1]),
        (int, '{"response": 7}', 7),
        (Literal["a", "b"], '```json\n{"response": "b"}\n```', "b"),
        (City | None, '{"response": null}', None),
        (RootModel[list[int]], '{"response": [1]}', RootModel[list[int]]([1])),
        (Any, '{"response": {"a": 1}}', {"a": 1}),
        (Any, '{"a": 1}', {"a": 1}),
    ],
)
def test_any_type_is_an_object_on_the_wire(kind: Any, text: str, value: Any) -> None:
    output = OutputType(kind)
    assert output.value_of(ModelResponse([TextPart(text)])) == value
    wanted = output.asked_of(ScriptedModel("x"), ModelRequestParameters()).output_object
    assert wanted is not None
    schema = wanted.json_schema
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    assert schema.get("$defs", {}).get(name, schema)["type"] == "object"
    assert wanted.name is not None
    assert wanted.name.replace("_", "").isalnum()


def test_only_the_words_of_the_user_describe_a_type() -> None:
    def description(kind: Any) -> Any:
        asked = OutputType(kind).asked_of(ScriptedModel("x"), ModelRequestParameters())
        return asked.output_object.description  # type: ignore[union-attr]

    assert description(City) == "A city."
    assert description(int) is None
    assert description(dict[str, int]) is None


@pytest.mark.parametrize("parts", [[], [TextPart("Rome")], [TextPart("a"), TextPart("b")]])
def test_an_answer_that_is_not_of_the_type_is_invalid(parts: list[Any]) -> None:
    with pytest.raises(OutputInvalid, match="the answer does not validate as City"):
        OutputType(City).value_of(ModelResponse(parts))


# --- calls as texts ------------------------------------------------------------------------------


def test_calls_that_are_answers_become_texts_and_others_stay() -> None:
    answers = AnswersByCall({ANSWER})
    look = ToolCallPart("look", '{"at": 1}', "c1")
    events = [
        PartStartEvent(index=0, part=ThinkingPart("Hm")),
        PartStartEvent(index=1, part=ToolCallPart(ANSWER, "", "c0")),
        PartDeltaEvent(index=1, delta=ToolCallPartDelta(args_delta='{"a"')),
        PartStartEvent(index=2, part=look),
        PartDeltaEvent(index=1, delta=ToolCallPartDelta(args_delta=": 1}")),
        PartDeltaEvent(index=2, delta=ToolCallPartDelta(args_delta=" ")),
        PartEndEvent(index=1, part=ToolCallPart(ANSWER, '{"a": 1}', "c0")),
    ]
    told = [answers.event(event) for event in events]
    assert texts(told) == '{"a": 1}'
    assert [told[0], told[3], told[5]] == [events[0], events[3], events[5]]
    assert told[6].part == TextPart('{"a": 1}')  # type: ignore[union-attr]
    both = ModelResponse([ToolCallPart(ANSWER, {"a": 1}, "c0"), look], finish_reason="tool_call")
    after = answers.response(both)
    assert after.parts == [TextPart('{"a":1}'), look]
    assert after.finish_reason == "tool_call"
    assert AnswersByCall(()).response(both) is both
    # The place of an answer may be that of something else in the next attempt.
    again = PartDeltaEvent(index=1, delta=ToolCallPartDelta(args_delta="x"))
    assert answers.event(PartStartEvent(index=1, part=look)).part is look  # type: ignore[union-attr]
    assert answers.event(again) == again
