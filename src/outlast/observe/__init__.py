"""Bridges from events to `logging` and OpenTelemetry.

Nothing is bridged unless you ask for it, and no other package of outlast imports this one. `log_events` (in
`log`) writes a line per event; `trace_events` (in `tracing`) makes spans from events that begin and end, as
`spans` describes, and names turns and tools by the conventions for generative AI (in `genai`). Both use the
field names of `attributes`.

**What it promises.** A bridge never affects the work that it observes. No text of a conversation and no
input or output of a tool passes through it. Its memory is bounded by the running work, and is freed when
the bridge ends. OpenTelemetry is imported when `trace_events` is called, not before.

This package may import every package below it. Start with `log`.
"""

from outlast.observe.log import log_events
from outlast.observe.tracing import trace_events

__all__ = ["log_events", "trace_events"]
