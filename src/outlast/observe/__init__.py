"""Events for others: bridges to `logging` and to OpenTelemetry.

Nothing is bridged unless you ask for it, and nothing of outlast imports this package. `log_events` (in `log`)
writes a line per event; `trace_events` (in `tracing`) makes spans of what began and ended, as `spans` says,
and calls turns and tools as the conventions for generative AI do (in `genai`). Both call the fields of an
event by the names that `attributes` gives them.

**What it promises.** A bridge never harms the work that it tells of. Nothing that was said, and no input or
output of a tool, passes through it. What it keeps in memory is bounded by the work under way, and is let go
when the bridge is ended. OpenTelemetry is imported when `trace_events` is called, not before.

This package may import everything below it.
"""

from outlast.observe.log import log_events
from outlast.observe.tracing import trace_events

__all__ = ["log_events", "trace_events"]
