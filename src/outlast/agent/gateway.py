"""What servers, inspectors and commands ask of the batteries of an agent, and of its class.

A battery that raises in a greeting or a frame harms nobody else: the error is logged, and the others are
asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from outlast.agent.agent import Agent, parts_of
from outlast.agent.battery import Battery
from outlast.agent.part import Part, report_failure


def batteries(agent_class: type[Any]) -> tuple[Battery, ...]:
    """Return the batteries of a class of agents, in the order of their parts."""
    return agent_class._batteries if issubclass(agent_class, Agent) else ()


def part_order(agent_class: type[Any]) -> list[str]:
    """Return the names of the parts of a class, in order; those of batteries by the battery's name."""
    if not issubclass(agent_class, Agent):
        return []
    own = [make.__qualname__.partition(".")[0] for make in agent_class._part_types]
    return own + [battery.name for battery in batteries(agent_class)]


def greetings(agent: Agent) -> list[str]:
    """Return the frames for a connection that joins."""
    found: list[str] = []
    for greeting in parts_of(agent).having("greeting"):
        try:
            found += greeting()
        except Exception as error:
            report_failure(cast(Part, greeting.__self__), "greeting", error)
    return found


async def handle_frame(agent: Agent, connection: Any, frame: dict[str, Any]) -> bool:
    """Offer a frame to the parts, one after another. False: it is nobody's."""
    for handle in parts_of(agent).having("frame"):
        try:
            if await handle(connection, frame):
                return True
        except Exception as error:
            what = f"frame {frame.get('type')!r}"
            report_failure(cast(Part, handle.__self__), what, error)
            return True
    return False


async def handle_request(agent: Agent, request: Any, rest: Sequence[str]) -> Any:
    """Have the battery that is named first in the path answer. None: there is none, or it does not."""
    part = parts_of(agent).of_battery(rest[0]) if rest else None
    return None if part is None else await part.request(request, "/".join(rest[1:]))
