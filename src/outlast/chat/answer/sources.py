"""Where a turn's tools, prompt sections and capabilities come from: its parts, the agent, the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from outlast.agent.part import Part, Parts, report_failure
from outlast.chat.tools.contribution import Contribution, Contributions, merged
from outlast.chat.tools.declare import marked_methods
from outlast.chat.tools.toolset import definition_of, tool_source
from outlast.chat.turn.turn import Turn
from outlast.core.hooks import call_hook


async def contributions(parts: Parts, turn: Turn, client_tools: Sequence[Any]) -> Contributions:
    """Gather what the parts, the agent itself and the client add to a turn, in order."""
    found = await _of_parts(parts, turn)
    own = [marked_methods(parts.agent), await call_hook(parts.agent.get_tools)]
    found.append(Contribution(source="agent", tools=own))
    if client_tools:
        schemas = [definition_of(schema) for schema in client_tools]
        found.append(Contribution(source="client", tools=schemas))
    return merged(found)


async def _of_parts(parts: Parts, turn: Turn) -> list[Contribution | None]:
    """A part that fails adds nothing."""
    found: list[Contribution | None] = []
    for contribute in parts.overriding("contribute"):
        try:
            found.append(_checked(await contribute(turn)))
        except Exception as error:
            what = f"contribute to turn {turn.request_id}"
            report_failure(cast(Part, contribute.__self__), what, error)
    return found


def _checked(given: object) -> Contribution | None:
    """The same; raises what is wrong with it, so that it is only its part that adds nothing."""
    if given is None:
        return None
    if not isinstance(given, Contribution):
        raise TypeError(f"contribute must return a Contribution or None, got {given!r}")
    if given.tools:
        tool_source(given.source, given.tools)
    return given
