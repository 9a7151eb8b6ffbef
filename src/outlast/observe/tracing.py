"""Events as OpenTelemetry spans. `spans` defines which events become a span."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.core.events import Events

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


def trace_events(
    events: Events, tracer_provider: TracerProvider | None = None
) -> Callable[[], None]:
    """Make spans from events, with `tracer_provider` (default: the global one).

    Returns a function that stops it; open spans then end as interrupted.

    ```python
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from outlast import Agent, FiberContext, Host
    from outlast.observe import trace_events

    class Owl(Agent):
        async def hoot(self) -> None:
            await self.run_fiber("hoot", self.hooting)

        async def hooting(self, fiber: FiberContext) -> None: ...

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with Host(agents=[Owl], store="sqlite:///owl.db") as host:
        stop = trace_events(host.events, provider)
        await host.get(Owl, "o").hoot()
        await host.until_settled()
        stop()
    assert "fiber hoot" in [span.name for span in exporter.get_finished_spans()]
    ```
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ImportError(
            "trace_events needs OpenTelemetry: pip install 'outlast[otel]'"
        ) from error
    from outlast.observe.spans import Spans

    spans = Spans(trace.get_tracer("outlast", tracer_provider=tracer_provider), events.clock)
    unsubscribe = events.subscribe("*", spans.hear)

    def end() -> None:
        unsubscribe()
        spans.end_all(events.clock.now())

    return end
