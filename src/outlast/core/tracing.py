"""The current trace, if there is one. This module does not import OpenTelemetry."""

from __future__ import annotations

import sys


def traceparent() -> str | None:
    """Return the current span as a W3C `traceparent`, or None without one."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
