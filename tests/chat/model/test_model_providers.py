"""The model facade over the providers' real classes, which talk to servers that speak their language."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from loops import skip
from outlast.chat.model.beginnings import CONTINUE
from outlast.chat.model.client import ModelStream, open_stream
from outlast.chat.model.errors import (
    RETRYABLE,
    ModelFailed,
    ModelStalled,
    ModelStreamTruncated,
    kind_of,
)
from outlast.chat.model.settings import model_settings
from outlast.core.abort import Abort
from providers.anthropic_messages import Anthropic
from providers.dialect import Answer, Call, Dialect
from providers.gemini import Gemini
from providers.openai_chat import OpenAIChat
from providers.openai_responses import OpenAIResponses
from providers.server import Reply, Server, refuse, running, stream

DIALECTS: list[Dialect] = [OpenAIChat(), OpenAIResponses(), Anthropic(), Gemini()]
KINDS = ["rate_limit", "quota", "overloaded", "context_overflow", "rejected"]
# Google does not say that an account is empty, only that there is a limit.
REFUSALS = [
    (dialect, kind)
    for dialect in DIALECTS
    for kind in KINDS
    if (dialect.name, kind) != ("google", "quota")
]
HELLO = Answer(text=("Hello ", "there."))
HI: list[ModelMessage] = [ModelRequest.user_text_prompt("Hi")]
WEATHER = ModelRequestParameters(
    function_tools=[
        ToolDefinition(
            name="weather",
            parameters_json_schema={"type": "object", "properties": {"city": {"type": "string"}}},
        )
    ]
)

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


@asynccontextmanager
async def serving(dialect: Dialect, *replies: Reply) -> AsyncIterator[tuple[Server, Model]]:
    async with running() as server:
        server.replies += replies
        async with dialect.model(server.url) as model:
            yield server, model


async def ask(
    model: Model, messages: list[ModelMessage] = HI, **options: Any
) -> tuple[list[Any], ModelStream]:
    async with open_stream(model, messages, **options) as answer:
        events = [event async for event in answer]
    return events, answer


def texts(events: list[Any]) -> str:
    """The text that somebody sees who follows the events."""
    seen = ""
    for event in events:
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            seen += event.part.content
        if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            seen += event.delta.content_delta
    return seen


# --- what arrives --------------------------------------------------------------------------------


@every_dialect
async def test_a_text_arrives_piece_by_piece_and_then_as_a_whole(dialect: Dialect) -> None:
    async with serving(dialect, stream(dialect.events(HELLO))) as (server, model):
        events, answer = await ask(model)
        dialect.check(server.bodies[0])
    assert texts(events) == "Hello there."
    assert sum(isinstance(event, PartDeltaEvent) for event in events) >= 1
    assert isinstance(events[-1], PartEndEvent)
    response = answer.response
    assert (response.text, response.state, response.finish_reason) == (
        "Hello there.",
        "complete",
        "stop",
    )
    assert (response.usage.input_tokens, response.usage.output_tokens) == (11, 7)


@every_dialect
async def test_parallel_calls_and_their_results_go_there_and_back(dialect: Dialect) -> None:
    calls = (Call("c1", "weather", {"city": "Bonn"}), Call("c2", "weather", {"city": "Rome"}))
    replies = [stream(dialect.events(Answer(calls=calls))), stream(dialect.events(HELLO))]
    async with serving(dialect, *replies) as (server, model):
        _, answer = await ask(model, parameters=WEATHER)
        first = answer.response
        assert [call.args_as_dict() for call in first.tool_calls] == [
            {"city": "Bonn"},
            {"city": "Rome"},
        ]
        results = [
            ToolReturnPart(call.tool_name, "sunny", call.tool_call_id)
            for call in reversed(first.tool_calls)
        ]
        _, answer = await ask(model, [*HI, first, ModelRequest(results)], parameters=WEATHER)
        assert answer.response.text == "Hello there."
        dialect.check(server.bodies[1])


@every_dialect
async def test_thoughts_keep_their_signature_across_requests_and_storage(dialect: Dialect) -> None:
    thinking = Answer(
        thoughts=("Let me ", "see."), calls=(Call("c1", "weather", {"city": "Bonn"}),)
    )
    replies = [stream(dialect.events(thinking)), stream(dialect.events(HELLO))]
    async with serving(dialect, *replies) as (server, model):
        _, answer = await ask(model, parameters=WEATHER)
        thoughts = [part for part in answer.response.parts if isinstance(part, ThinkingPart)]
        assert "".join(part.content for part in thoughts) == "Let me see."
        stored = ModelMessagesTypeAdapter.dump_json([*HI, answer.response])
        history = ModelMessagesTypeAdapter.validate_json(stored)
        call = answer.response.tool_calls[0]
        result = ToolReturnPart(call.tool_name, "sunny", call.tool_call_id)
        await ask(model, [*history, ModelRequest([result])], parameters=WEATHER)
        dialect.check(server.bodies[1])
        if not isinstance(dialect, OpenAIChat):  # which has none
            assert dialect.signatures(server.bodies[1]) == [thinking.signature]


async def test_settings_reach_the_provider() -> None:
    dialect = Anthropic()
    settings = model_settings(
        max_output_tokens=99,
        temperature=0.5,
        stop_sequences=["END"],
        headers={"x-trace": "7"},
        provider_options={"extra_body": {"beta": True}},
    )
    async with serving(dialect, stream(dialect.events(HELLO))) as (server, model):
        await ask(model, settings=settings)
    body = server.bodies[0]
    assert (body["max_tokens"], body["temperature"], body["stop_sequences"], body["beta"]) == (
        99,
        0.5,
        ["END"],
        True,
    )
    assert server.requests[0].headers["x-trace"] == "7"


async def test_an_answer_that_reached_its_limit_is_whole() -> None:
    dialect = OpenAIResponses()
    async with serving(dialect, stream(dialect.events(HELLO, cut_short=True))) as (_, model):
        _, answer = await ask(model)
    assert (answer.response.state, answer.response.finish_reason) == ("complete", "length")


@every_dialect
def test_a_model_whose_connections_are_closed_opens_new_ones(dialect: Dialect) -> None:
    """As after a restart of the host in the same process, on another event loop."""
    models: list[Model] = []

    async def once() -> None:
        async with running() as server:
            server.replies.append(stream(dialect.events(HELLO)))
            models.append(dialect.model(server.url) if not models else moved(server.url))
            _, answer = await ask(models[-1])
            assert answer.response.text == "Hello there."
            async with models[-1]:
                pass  # closes its connections

    def moved(url: str) -> Model:
        """The same model, with the address of the server that runs now."""
        client: Any = models[0].provider.client  # type: ignore[union-attr]
        if dialect.name == "google":
            client._api_client._http_options.base_url = url
        else:
            client.base_url = url + ("" if dialect.name == "anthropic" else "/v1")
        return models[0]

    asyncio.run(once())
    asyncio.run(once())


# --- what is sent --------------------------------------------------------------------------------


@every_dialect
async def test_a_call_that_nobody_answered_is_closed_before_it_is_sent(dialect: Dialect) -> None:
    dangling = ModelResponse([ToolCallPart("weather", '{"city": "Bo', "c1")], state="interrupted")
    async with serving(dialect, stream(dialect.events(HELLO))) as (server, model):
        await ask(model, [*HI, dangling], parameters=WEATHER)
        await ask(model, [*HI, dangling, *HI], parameters=WEATHER)
        for body in server.bodies:
            dialect.check(body)


@every_dialect
async def test_a_request_never_ends_with_the_models_own_words(dialect: Dialect) -> None:
    partial = ModelResponse([ThinkingPart("Hm"), TextPart("Hello th")], state="interrupted")
    async with serving(dialect, stream(dialect.events(HELLO))) as (server, model):
        await ask(model, [*HI, partial])
        dialect.check(server.bodies[0])
    sent = json.dumps(server.bodies[0])
    assert CONTINUE in sent
    assert "Hello th" in sent
    assert "Hm" not in sent, "an unsigned thought is not for sending"


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "kind"), REFUSALS, ids=lambda value: getattr(value, "name", value)
)
async def test_each_kind_of_refusal_is_told_apart(dialect: Dialect, kind: str) -> None:
    refusal = dialect.error(kind)
    assert refusal is not None
    async with serving(dialect, refusal) as (server, model):
        with pytest.raises(ModelFailed) as caught:
            await ask(model, max_retries=0)
        assert len(server.requests) == 1, "the provider's package has retried"
    assert caught.value.kind == kind_of(caught.value) == kind
    assert caught.value.__cause__ is not None
    assert caught.value.response is not None
    assert caught.value.response.parts == []


async def test_google_has_one_word_for_a_limit_and_for_an_empty_account() -> None:
    """`RESOURCE_EXHAUSTED`, with the same status for both: it is taken for what passes."""
    dialect = Gemini()
    message = "You exceeded your current quota, please check your plan and billing details."
    error = {"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED"}}
    async with serving(dialect, refuse(429, error)) as (server, model):
        with pytest.raises(ModelFailed) as caught:
            await ask(model, max_retries=1, chance=lambda: -3.0)  # no wait
        assert len(server.requests) == 2
    assert caught.value.kind == "rate_limit"


@every_dialect
async def test_a_server_that_cannot_be_reached_is_a_connection_error(dialect: Dialect) -> None:
    async with serving(dialect) as (server, model):
        pass
    async with model:
        with pytest.raises(ModelFailed) as caught:
            await ask(model, max_retries=0)
    assert caught.value.kind == "connection"


@every_dialect
async def test_a_rate_limit_is_waited_out_as_long_as_the_provider_says(dialect: Dialect) -> None:
    refusal = dialect.error("rate_limit")
    assert refusal is not None
    refusal.headers["retry-after-ms"] = "60"
    told: list[tuple[str, int, float]] = []
    async with serving(dialect, refusal, refusal, stream(dialect.events(HELLO))) as (server, model):
        _, answer = await ask(
            model,
            on_retry=lambda error, attempt, delay: told.append((kind_of(error), attempt, delay)),
        )
        assert len(server.requests) == 3
    assert answer.response.text == "Hello there."
    assert told == [("rate_limit", 1, 0.06), ("rate_limit", 2, 0.06)]


@every_dialect
async def test_what_will_not_pass_is_not_retried(dialect: Dialect) -> None:
    for refused, kind in REFUSALS:
        if refused is not dialect or kind in RETRYABLE:
            continue
        refusal = dialect.error(kind)
        assert refusal is not None
        async with serving(dialect, refusal) as (server, model):
            with pytest.raises(ModelFailed):
                await ask(model, max_retries=5)
            assert len(server.requests) == 1


async def test_a_wait_that_is_too_long_is_left_to_others() -> None:
    dialect = OpenAIChat()
    async with serving(dialect, refuse(429, {"error": {"message": "no"}}, retry_after="600")) as (
        server,
        model,
    ):
        with pytest.raises(ModelFailed) as caught:
            await ask(model)
        assert len(server.requests) == 1
    assert caught.value.retry_after == 600


@every_dialect
async def test_an_error_in_the_middle_keeps_what_had_arrived(dialect: Dialect) -> None:
    events = [*dialect.events(HELLO, finished=False), dialect.error_event()]
    async with serving(dialect, stream(events)) as (server, model):
        with pytest.raises(ModelFailed) as caught:
            await ask(model)
        assert len(server.requests) == 1, "somebody has seen the beginning of this answer"
    assert caught.value.kind == "overloaded"
    assert caught.value.response is not None
    assert caught.value.response.text == "Hello there."
    assert caught.value.response.state == "incomplete"


@every_dialect
async def test_an_error_before_the_first_word_is_retried(dialect: Dialect) -> None:
    replies = [stream([dialect.error_event()]), stream(dialect.events(HELLO))]
    async with serving(dialect, *replies) as (server, model):
        _, answer = await ask(model, chance=lambda: -3.0)  # no wait
        assert len(server.requests) == 2
    assert answer.response.text == "Hello there."


@every_dialect
async def test_an_answer_that_breaks_off_is_not_taken_for_whole(dialect: Dialect) -> None:
    async with serving(dialect, stream(dialect.events(HELLO, finished=False))) as (_, model):
        with pytest.raises(ModelStreamTruncated) as caught:
            await ask(model)
    assert caught.value.kind == "truncated"
    assert caught.value.response is not None
    assert caught.value.response.text == "Hello there."


async def test_a_server_that_never_says_why_it_ended_can_be_believed() -> None:
    dialect = OpenAIChat()
    async with serving(dialect, stream(dialect.events(HELLO, finished=False))) as (_, model):
        model.profile["openai_chat_streaming_requires_finish_reason"] = False  # type: ignore[typeddict-unknown-key]
        _, answer = await ask(model)
    assert answer.response.state == "complete"


@every_dialect
async def test_a_lost_connection_keeps_what_had_arrived(dialect: Dialect) -> None:
    async with serving(dialect, stream(dialect.events(HELLO, finished=False), "drop")) as (
        _,
        model,
    ):
        with pytest.raises(ModelFailed) as caught:
            await ask(model)
    assert caught.value.kind == "connection"
    assert caught.value.response is not None
    assert caught.value.response.text == "Hello there."


# --- stopping ------------------------------------------------------------------------------------


@every_dialect
async def test_an_abort_stops_a_silent_stream_at_once_and_closes_it(dialect: Dialect) -> None:
    abort = Abort()
    async with serving(dialect, stream(dialect.events(HELLO, finished=False), "hang")) as (
        server,
        model,
    ):
        async with open_stream(model, HI, abort=abort) as answer:
            seen = ""
            async for event in answer:
                seen += texts([event])
                if seen == "Hello there.":
                    asyncio.get_running_loop().call_later(0.02, abort.set, "stop")
        assert answer.is_aborted
        assert (answer.response.text, answer.response.state) == ("Hello there.", "interrupted")
        await asyncio.wait_for(server.hung_up.wait(), 60)


@every_dialect
async def test_an_abort_before_the_first_byte_stops_the_request(dialect: Dialect) -> None:
    abort = Abort()
    async with serving(dialect, stream([], "hang")) as (server, model):

        async def stop() -> None:
            await server.is_streaming.wait()  # the request has arrived
            abort.set()

        async with asyncio.TaskGroup() as side:
            side.create_task(stop())
            events, answer = await ask(model, abort=abort)
        assert events == []
        assert answer.response.state == "interrupted"
        await asyncio.wait_for(server.hung_up.wait(), 60)


@every_dialect
async def test_leaving_early_closes_the_connection(dialect: Dialect) -> None:
    async with serving(dialect, stream(dialect.events(HELLO, finished=False), "hang")) as (
        server,
        model,
    ):
        async with open_stream(model, HI) as answer:
            async for _ in answer:
                break
        assert answer.response.state == "incomplete"
        await asyncio.wait_for(server.hung_up.wait(), 60)


@every_dialect
async def test_cancelling_the_reader_closes_the_connection(dialect: Dialect) -> None:
    async with serving(dialect, stream(dialect.events(HELLO, finished=False), "hang")) as (
        server,
        model,
    ):
        reader = asyncio.create_task(ask(model, abort=Abort(), stall_timeout=60))
        await server.is_streaming.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await asyncio.wait_for(server.hung_up.wait(), 60)


@pytest.mark.invariant("H16")
@pytest.mark.skipped_time
@every_dialect
async def test_a_stalled_stream_is_given_up(dialect: Dialect) -> None:
    async with serving(dialect, stream(dialect.events(HELLO, finished=False), "hang")) as (
        server,
        model,
    ):

        async def wait_in_vain() -> None:
            await server.is_hanging.wait()
            skip(30)

        async with asyncio.TaskGroup() as side:
            side.create_task(wait_in_vain())
            with pytest.raises(ModelStalled) as caught:
                await ask(model, stall_timeout=30)
        await asyncio.wait_for(server.hung_up.wait(), 60)
    assert caught.value.response is not None
    assert caught.value.response.text == "Hello there."


@pytest.mark.skipped_time
@every_dialect
async def test_a_slow_stream_is_no_stalled_one(dialect: Dialect) -> None:
    pieces = Answer(text=("a",) * 16)
    async with serving(dialect, stream(dialect.events(pieces), gap=20)) as (_, model):
        _, answer = await ask(model, stall_timeout=150)
    assert answer.response.text == "a" * 16


# --- answers that are suspended ------------------------------------------------------------------


async def test_a_paused_turn_is_continued_and_joined() -> None:
    dialect = Anthropic()
    paused = dialect.events(Answer(text=("Hello ",)), stop_reason="pause_turn")
    rest = stream(dialect.events(Answer(text=("there.",))))
    async with serving(dialect, stream(paused), rest) as (server, model):
        events, answer = await ask(model)
        assert len(server.requests) == 2
        assert server.bodies[1]["messages"][-1]["role"] == "assistant", "as Anthropic wants it here"
    assert texts(events) == "Hello there."
    assert [event.index for event in events if isinstance(event, PartStartEvent)] == [0, 1]
    assert answer.response.text == "Hello there."
    assert answer.response.state == "complete"
    assert answer.response.usage.output_tokens == 14


async def test_a_turn_that_pauses_for_ever_is_given_up() -> None:
    dialect = Anthropic()
    paused = dialect.events(Answer(text=("a",)), stop_reason="pause_turn")
    async with serving(dialect, stream(paused)) as (server, model):
        with pytest.raises(ModelFailed, match="suspended"):
            await ask(model)
        assert len(server.requests) == 11


BACKGROUND = {"openai_background": True, "openai_store": True}


@pytest.mark.parametrize("end", ["whole", "drop"])
async def test_a_background_answer_is_fetched_without_losing_or_repeating_anything(
    end: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = OpenAIResponses()
    beginning = dialect.events(Answer(text=("Hello ",)), finished=False, background=True)
    replies = [
        stream(beginning, end),
        dialect.whole("in_progress", "Hello th"),
        dialect.whole("completed", "Hello there."),
    ]
    async with serving(dialect, *replies) as (server, model):
        monkeypatch.setattr(type(model), "continuation_delay", lambda self, response: 0.01)
        events, answer = await ask(model, settings=BACKGROUND)
        assert [request.method for request in server.requests] == ["POST", "GET", "GET"]
        assert "starting_after" not in server.requests[1].path
    assert texts(events) == "Hello there."
    assert sum(isinstance(event, PartEndEvent) for event in events) == 1
    assert (answer.response.text, answer.response.state) == ("Hello there.", "complete")


async def test_a_background_answer_can_be_taken_up_after_a_death() -> None:
    dialect = OpenAIResponses()
    beginning = dialect.events(Answer(text=("Hello ",)), finished=False, background=True)
    async with serving(dialect, stream(beginning, "hang")) as (server, model):
        async with open_stream(model, HI, BACKGROUND) as answer:  # type: ignore[arg-type]
            async for event in answer:
                if texts([event]):
                    break
        assert answer.response.state == "suspended"
        stored = ModelMessagesTypeAdapter.dump_json([*HI, answer.response])
        server.replies = [dialect.whole("completed", "Hello there.")]
        history = ModelMessagesTypeAdapter.validate_json(stored)
        events, answer = await ask(model, history, settings=BACKGROUND)
        assert server.requests[-1].method == "GET"
    assert texts(events) == "there."
    assert answer.response.text == "Hello there."


async def test_an_abort_tells_the_provider_to_stop_its_background_work() -> None:
    dialect = OpenAIResponses()
    beginning = dialect.events(Answer(text=("Hello ",)), finished=False, background=True)
    abort = Abort()
    replies = [stream(beginning, "hang"), dialect.whole("cancelled", "Hello ")]
    async with serving(dialect, *replies) as (server, model):
        async with open_stream(model, HI, BACKGROUND, abort=abort) as answer:  # type: ignore[arg-type]
            async for event in answer:
                if texts([event]):
                    abort.set()
        assert server.requests[-1].path.endswith("/cancel")
    assert answer.response.state == "interrupted"
