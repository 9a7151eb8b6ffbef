"""What a test sees of the spans that have ended."""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SECOND = 1_000_000_000  # nanoseconds


class Order(SpanProcessor):
    """Notes in which order spans have begun, whatever their clocks say."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.ids.append(span.get_span_context().span_id)


class Tracing:
    """A provider, and the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._order = Order()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self._order)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def tree(self, name: str) -> list[str]:
        """The one span of this name and all below it, in the order of their beginnings, indented."""
        return self.below(self.one(name))

    def below(self, span: ReadableSpan, depth: int = 0) -> list[str]:
        children = [
            other
            for other in self.spans
            if other.parent is not None and other.parent.span_id == span.context.span_id
        ]
        children.sort(key=lambda child: self._order.ids.index(child.context.span_id))
        lines = [line for child in children for line in self.below(child, depth + 1)]
        return [f"{'  ' * depth}{span.name}", *lines]


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def outcome(span: ReadableSpan) -> Any:
    return attribute(span, "outlast.outcome")


def lasted(span: ReadableSpan) -> float:
    """In seconds."""
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / SECOND


def added(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]
