"""`ScriptedModel`: what it says, to whom, and what it remembers."""

from __future__ import annotations

import asyncio
from time import process_time
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from outlast.chat.context.tool_prompt import ToolPrompt
from outlast.chat.model.beginnings import CONTINUE
from outlast.chat.model.client import open_stream
from outlast.chat.model.errors import ModelFailed
from outlast.testing import ScriptedModel, ScriptExhausted, Step
from outlast.testing.scripted import turn_position
from outlast.testing.steps import words

pytestmark = pytest.mark.virtual_time
HI: list[ModelMessage] = [ModelRequest.user_text_prompt("Hi")]


def now() -> float:
    return asyncio.get_running_loop().time()


async def ask(
    model: ScriptedModel, messages: list[ModelMessage] = HI, **options: Any
) -> ModelResponse:
    async with open_stream(model, messages, max_retries=0, **options) as stream:
        async for _ in stream:
            pass
    return stream.response


def results_of(response: ModelResponse) -> ModelRequest:
    return ModelRequest(
        [ToolReturnPart(call.tool_name, "ok", call.tool_call_id) for call in response.tool_calls]
    )


async def test_a_text_comes_word_by_word() -> None:
    async with open_stream(ScriptedModel("Hello there, you."), HI) as stream:
        events = [event async for event in stream]
    start, *_, end = events
    assert isinstance(start, PartStartEvent)
    assert start.part.content == "Hello "
    assert [event.delta.content_delta for event in events if isinstance(event, PartDeltaEvent)] == [
        "there, ",
        "you.",
    ]
    assert isinstance(end, PartEndEvent)
    assert stream.response.finish_reason == "stop"


@pytest.mark.parametrize("text", ["a b", "  a\n\nb  ", "", "   ", "ab", "a  b c\t"])
def test_words_put_together_are_the_text(text: str) -> None:
    assert "".join(words(text)) == text


async def test_chunks_come_as_they_are_given_at_the_given_pace() -> None:
    response = await ask(ScriptedModel.text(chunks=["He", "llo", ""], delay=2))
    assert response.text == "Hello"
    assert now() == 6


async def test_a_call_is_followed_by_what_the_model_says_to_its_result() -> None:
    model = ScriptedModel.calls("send_mail", to="a@b.c", body="hi").then("Done.")
    first = await ask(model)
    (call,) = first.tool_calls
    assert call.args_as_dict() == {"to": "a@b.c", "body": "hi"}
    assert first.finish_reason == "tool_call"
    second = await ask(model, [*HI, first, results_of(first)])
    assert second.text == "Done."


async def test_one_answer_may_think_speak_and_call_several_tools() -> None:
    model = ScriptedModel.reasoning("Let me see.").also("I will look.")
    model.also(Step.calls("look", at="left") + Step.calls("look", at="right"))
    response = await ask(model)
    kinds = [type(part) for part in response.parts]
    assert kinds == [ThinkingPart, TextPart, ToolCallPart, ToolCallPart]
    thought = response.parts[0]
    assert isinstance(thought, ThinkingPart)
    assert (thought.content, thought.signature) == ("Let me see.", "signature")
    ids = {call.tool_call_id for call in response.tool_calls}
    assert len(ids) == 2


async def test_a_call_may_have_a_chosen_id_and_broken_arguments() -> None:
    response = await ask(ScriptedModel(Step.call("look", '{"at": "le', id="c1")))
    (call,) = response.tool_calls
    assert (call.tool_call_id, call.args) == ("c1", '{"at": "le')


async def test_a_turn_that_is_taken_up_again_gets_the_same_answer() -> None:
    model = ScriptedModel.calls("look").then("Done.")
    first = await ask(model)
    again = await ask(model)
    assert again.tool_calls[0].tool_name == "look"
    assert again.tool_calls[0].tool_call_id != first.tool_calls[0].tool_call_id
    history = [*HI, first, results_of(first)]
    assert (await ask(model, history)).text == (await ask(model, history)).text == "Done."


async def test_each_turn_starts_at_the_beginning_of_the_script() -> None:
    model = ScriptedModel.calls("look").then("Done.")
    first = await ask(model)
    turn = [*HI, first, results_of(first), ModelResponse([TextPart("Done.")])]
    assert (await ask(model, [*turn, *HI])).tool_calls


async def test_by_request_the_answers_are_given_once_in_order() -> None:
    model = ScriptedModel("One.", "Two.", by="request")
    assert (await ask(model)).text == "One."
    assert (await ask(model)).text == "Two."
    with pytest.raises(ModelFailed, match="2 answer") as caught:
        await ask(model)
    assert isinstance(caught.value.__cause__, ScriptExhausted)


async def test_a_turn_that_asks_for_more_than_the_script_has_is_told() -> None:
    model = ScriptedModel.calls("look")
    first = await ask(model)
    with pytest.raises(ModelFailed, match="asks for number 2"):
        await ask(model, [*HI, first, results_of(first)])


async def test_the_last_answer_can_be_repeated() -> None:
    model = ScriptedModel("One.", "Two.", by="request", repeat=True)
    assert [(await ask(model)).text for _ in range(4)] == ["One.", "Two.", "Two.", "Two."]


async def test_an_answer_can_be_a_function_of_the_messages() -> None:
    def count(messages: list[ModelMessage]) -> str | Step:
        return f"{len(messages)} so far" if len(messages) < 3 else Step.calls("look")

    model = ScriptedModel.answering(count)
    assert (await ask(model)).text == "1 so far"
    assert (await ask(model, [*HI, ModelResponse([TextPart("A")]), *HI])).tool_calls


async def test_an_interrupted_answer_is_continued_where_it_stopped() -> None:
    model = ScriptedModel(Step.reasoning("Hm.") + Step.text("Hello there, friend."))
    cut = ModelResponse([TextPart("Hello th")], state="interrupted")
    assert (await ask(model, [*HI, cut])).text == "ere, friend."
    seems_whole = ModelResponse([TextPart("Hello th")])
    assert (await ask(model, [*HI, seems_whole])).text == "ere, friend."
    foreign = ModelResponse([TextPart("Guten Tag")], state="interrupted")
    assert (await ask(model, [*HI, foreign])).text == "Hello there, friend."


def test_how_far_a_turn_has_come() -> None:
    prompt = ModelRequest([UserPromptPart("Hi")])
    go_on = ModelRequest([UserPromptPart(CONTINUE)])
    result = ModelRequest([ToolReturnPart("look", "ok", "c1")])
    more = ModelRequest([ToolReturnPart("look", "ok", "c1"), ToolPrompt("A picture")])
    call = ModelResponse([ToolCallPart("look", "{}", "c1")])
    text = ModelResponse([TextPart("Hello")])
    cut = ModelResponse([TextPart("Hel")], state="interrupted")
    rest = ModelResponse([TextPart("lo")])
    assert turn_position([prompt]) == (0, "")
    assert turn_position([prompt, call, result]) == (1, "")
    assert turn_position([prompt, call, more]) == (1, ""), "a tool has told the model more"
    both = ModelRequest([*result.parts, *prompt.parts])  # as providers are sent it
    assert turn_position([prompt, call, both]) == (0, "")
    assert turn_position([prompt, call, result, text, prompt]) == (0, "")
    assert turn_position([prompt, cut, go_on]) == (0, "Hel")
    assert turn_position([prompt, call, result, cut, go_on]) == (1, "Hel")
    assert turn_position([prompt, call, result, text, go_on]) == (1, "Hello")
    assert turn_position([prompt, cut, rest, call, result]) == (1, "")
    assert turn_position([]) == (0, "")


@pytest.mark.parametrize(
    "kind", ["rate_limit", "overloaded", "connection", "context_overflow", "quota", "rejected"]
)
async def test_failures_look_like_a_providers(kind: Any) -> None:
    for model in (ScriptedModel.fails(kind), ScriptedModel(Step.text("Hello ") + Step.fails(kind))):
        with pytest.raises(ModelFailed) as caught:
            await ask(model)
        assert caught.value.kind == kind
        assert len(model.requests) == 1


async def test_an_exception_can_stand_in_for_an_answer() -> None:
    with pytest.raises(ModelFailed, match="boom"):
        await ask(ScriptedModel(RuntimeError("boom")))


async def test_silence_lasts_as_long_as_it_is_told_to() -> None:
    assert (await ask(ScriptedModel.stalls(90).also("Hello."))).text == "Hello."
    assert now() == 90


async def test_an_answer_can_end_for_other_reasons_and_cost_something() -> None:
    usage = RequestUsage(input_tokens=100, output_tokens=20)
    response = await ask(ScriptedModel(Step.text("Hel", finish_reason="length", usage=usage)))
    assert response.finish_reason == "length"
    assert response.usage == usage
    assert (await ask(ScriptedModel("a b c"))).usage.output_tokens == 3


async def test_it_keeps_what_it_was_shown() -> None:
    model = ScriptedModel("Hello.")
    tool = ToolDefinition(name="look", description="Look.")
    parameters = ModelRequestParameters(function_tools=[tool])
    asked = ModelRequest([UserPromptPart("Hi")], instructions="Be brief.")
    await ask(model, [asked], settings={"temperature": 0.5}, parameters=parameters)
    (request,) = model.requests
    assert request.messages == [asked]
    assert request.settings["temperature"] == 0.5
    assert (request.tools, request.instructions) == (["look"], "Be brief.")


async def test_its_answers_can_be_stored_and_read_again() -> None:
    response = await ask(ScriptedModel(Step.reasoning("Hm.") + "Yes." + Step.calls("look", n=1)))
    stored = ModelMessagesTypeAdapter.dump_json([response])
    assert ModelMessagesTypeAdapter.validate_json(stored) == [response]


async def test_it_works_in_pydantic_ais_own_agent_too() -> None:
    model = ScriptedModel.calls("double", n=21).then("It is 42.")
    agent = Agent(model)
    agent.tool_plain(lambda n: n * 2, name="double")
    result = await agent.run("What is it?")
    assert result.output == "It is 42."
    assert "42" in str(model.requests[1].messages[-1])
    async with agent.run_stream("And now?") as stream:
        assert await stream.get_output() == "It is 42."


async def test_many_chunks_are_cheap() -> None:
    model = ScriptedModel.text(chunks=["word "] * 5000)
    best = 1.0
    for _ in range(5):
        started = process_time()
        await ask(model)
        best = min(best, process_time() - started)
    assert best / 5000 < 50e-6, "about 5 µs each, with room for a slow machine"
    assert now() == 0
