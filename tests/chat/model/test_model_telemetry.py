"""Requests to models as OpenTelemetry spans, with the real SDK and a provider's own class."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pydantic_ai.models.instrumented import InstrumentationSettings

from chat.model.test_model_providers import HELLO, HI, WEATHER, Dialect, ask, every_dialect, serving
from outlast.chat.model.client import open_stream
from outlast.chat.model.errors import ModelFailed
from outlast.chat.model.request import instrumentation
from outlast.core.abort import Abort
from outlast.testing import ScriptedModel
from providers.server import stream


class Tracing:
    """A provider of tracers, and the spans that have ended."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")
        self.settings = InstrumentationSettings(tracer_provider=self.provider, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())


@pytest.fixture(autouse=True)
def no_complaints(caplog: pytest.LogCaptureFixture) -> Any:
    """The SDK does not raise, it logs: a span that ends in another context than it began in, for one."""
    with caplog.at_level(logging.WARNING):
        yield
    assert [record.getMessage() for record in caplog.records] == []


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


@every_dialect
async def test_a_request_is_a_span_below_the_one_that_is_current(dialect: Dialect) -> None:
    tracing = Tracing(include_content=False)
    async with serving(dialect, stream(dialect.events(HELLO))) as (_, model):
        with tracing.tracer.start_as_current_span("turn") as turn:
            await ask(model, instrument=tracing.settings, abort=Abort(), stall_timeout=60)
            assert trace.get_current_span() is turn
    chat, outer = tracing.spans
    assert (chat.name, outer.name) == (f"chat {model.model_name}", "turn")
    assert parent_of(chat) == turn.get_span_context().span_id
    assert chat.status.status_code is not StatusCode.ERROR
    attributes = dict(chat.attributes or {})
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == model.model_name
    assert attributes["gen_ai.usage.input_tokens"] == 11
    assert attributes["gen_ai.usage.output_tokens"] == 7
    assert "Hello there." not in json.dumps(attributes, default=str)


async def test_what_was_said_is_part_of_the_span_if_that_is_wanted() -> None:
    tracing = Tracing(include_content=True)
    await ask(ScriptedModel("Hello there."), instrument=tracing.settings, instructions="Be brief.")
    [chat] = tracing.spans
    told = json.dumps(dict(chat.attributes or {}), default=str)
    assert "Hello there." in told
    assert "Be brief." in told


@every_dialect
async def test_each_attempt_is_a_span_and_a_refused_one_an_error(dialect: Dialect) -> None:
    refusal = dialect.error("rate_limit")
    assert refusal is not None
    tracing = Tracing(include_content=False)
    replies = [refusal, stream(dialect.events(HELLO))]
    async with serving(dialect, *replies) as (_, model):
        await ask(model, instrument=tracing.settings, chance=lambda: -3.0)  # no wait
    refused, answered = tracing.spans
    assert refused.status.status_code is StatusCode.ERROR
    [exception] = refused.events
    assert "ModelRateLimitError" in str((exception.attributes or {})["exception.type"])
    assert answered.status.status_code is not StatusCode.ERROR
    assert parent_of(refused) is None
    assert parent_of(answered) is None, "a retry is no part of what failed"


@every_dialect
async def test_an_error_in_the_middle_of_an_answer_is_one_of_its_span(dialect: Dialect) -> None:
    tracing = Tracing(include_content=False)
    events = [*dialect.events(HELLO, finished=False), dialect.error_event()]
    async with serving(dialect, stream(events)) as (_, model):
        with pytest.raises(ModelFailed):
            await ask(model, instrument=tracing.settings)
    [chat] = tracing.spans
    assert chat.status.status_code is StatusCode.ERROR


@every_dialect
async def test_an_answer_that_is_left_ends_its_span(dialect: Dialect) -> None:
    for leave in ("abort", "break"):
        tracing = Tracing(include_content=False)
        abort = Abort()
        reply = stream(dialect.events(HELLO, finished=False), "hang")
        async with serving(dialect, reply) as (_, model):
            with tracing.tracer.start_as_current_span("turn") as turn:
                async with open_stream(
                    model, HI, abort=abort, instrument=tracing.settings
                ) as answer:
                    async for _ in answer:
                        if leave == "break":
                            break
                        abort.set()
                assert trace.get_current_span() is turn
        assert [span.name for span in tracing.spans] == [f"chat {model.model_name}", "turn"]


async def test_spans_do_not_carry_every_schema_unless_asked_to() -> None:
    made = instrumentation(True)
    assert isinstance(made, InstrumentationSettings)
    assert not made.include_model_request_parameters
    own = InstrumentationSettings()
    assert [instrumentation(each) for each in (own, False, None)] == [own, False, None]
    for settings, is_told in ((True, False), (own, True)):
        tracing = Tracing()
        given = instrumentation(settings)
        given.tracer = tracing.settings.tracer
        await ask(ScriptedModel("Hello."), instrument=given, parameters=WEATHER)
        [chat] = tracing.spans
        assert ("model_request_parameters" in (chat.attributes or {})) is is_told


async def test_no_span_is_made_unless_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing = Tracing()
    monkeypatch.setattr(
        "pydantic_ai.models.instrumented.get_tracer_provider", lambda: tracing.provider
    )
    for off in (None, False):
        await ask(ScriptedModel("Hello."), instrument=off)
    assert tracing.spans == []
    await ask(ScriptedModel("Hello."), instrument=True)
    assert [span.name for span in tracing.spans] == ["chat scripted"]
