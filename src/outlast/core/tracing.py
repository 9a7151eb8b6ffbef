"""The trace that the running code belongs to, if anybody traces it. OpenTelemetry is not loaded for this."""

from __future__ import annotations

import sys


def traceparent() -> str | None:
    """The current span in the W3C's form; None: there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
