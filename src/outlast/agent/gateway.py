"""The interface of servers, inspectors and commands to the batteries of an agent or of its class.

An exception of a battery in a greeting or a frame is logged and does not affect the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from outlast.agent.agent import Agent, parts_of
from outlast.agent.battery import Battery
from outlast.agent.part import Part, report_failure


def batteries(agent_class: type[Any]) -> tuple[Battery, ...]:
    """Return the batteries of an agent class, in the order of their parts."""
    return agent_class._batteries if issubclass(agent_class, Agent) else ()


def part_order(agent_class: type[Any]) -> list[str]:
    """Return the names of the parts of a class, in order; the part of a battery has the battery's name."""
    if not issubclass(agent_class, Agent):
        return []
    own = [make.__qualname__.partition(".")[0] for make in agent_class._part_types]
    return own + [battery.name for battery in batteries(agent_class)]


def greetings(agent: Agent) -> list[str]:
    """Return the frames for a connection that joins."""
    found: list[str] = []
    for greeting in parts_of(agent).overriding("greeting"):
        try:
            found += greeting()
        except Exception as error:
            report_failure(cast(Part, greeting.__self__), "greeting", error)
    return found


async def handle_frame(agent: Agent, connection: Any, frame: dict[str, Any]) -> bool:
    """Offer a frame to each part in order. False if none of them handles it."""
    for handle in parts_of(agent).overriding("frame"):
        try:
            if await handle(connection, frame):
                return True
        except Exception as error:
            what = f"frame {frame.get('type')!r}"
            report_failure(cast(Part, handle.__self__), what, error)
            return True
    return False


async def handle_request(agent: Agent, request: Any, rest: Sequence[str]) -> Any:
    """Return the response of the battery that the path starts with, or None if it has none."""
    if not rest:
        return None
    for battery in batteries(type(agent)):
        is_own = rest[0] == battery.name
        if is_own or rest[0] in battery.paths:
            part = parts_of(agent).of_battery(battery.name)
            path = "/".join(rest[1:] if is_own else rest)
            return None if part is None else await part.request(request, path)
    return None
