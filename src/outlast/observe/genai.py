"""Span names and attributes of turns and tools, by OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace import Link
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from outlast.chat.types.events import ToolStarted
from outlast.host.address import Address
from outlast.observe.attributes import Attributes, attributes


def of_turn(agent: str) -> tuple[str, Attributes]:
    """Return the name of a turn's span, and the attributes of its agent."""
    kind = Address.parse(agent).kind
    return f"invoke_agent {kind}", {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": kind,
        "gen_ai.agent.id": agent,
        "gen_ai.conversation.id": agent,
        "outlast.agent": agent,
    }


def of_tool(call: ToolStarted) -> tuple[str, Attributes]:
    """Return the name of a call's span, and the attributes of the call, without its input."""
    return f"execute_tool {call.tool_name}", {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.tool_name,
        "gen_ai.tool.call.id": call.tool_call_id,
        "gen_ai.tool.type": "function",
        **attributes(call),
    }


def link_to(traceparent: str) -> Link | None:
    """Return a link to the span of a W3C `traceparent`; None if it is invalid."""
    found = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    span = trace.get_current_span(found).get_span_context()
    return Link(span) if span.is_valid else None
