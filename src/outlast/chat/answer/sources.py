"""The sources of a turn's tools, prompt sections and capabilities: parts, the agent, the client."""

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
    """Collect the contributions of the parts, the agent itself and the client to a turn, in order."""
    found = await _of_parts(parts, turn)
    own = [marked_methods(parts.agent), await call_hook(parts.agent.get_tools)]
    found.append(Contribution(source="agent", tools=own))
    if client_tools:
        schemas = [definition_of(schema) for schema in client_tools]
        found.append(Contribution(source="client", tools=schemas))
    return merged(found)


async def _of_parts(parts: Parts, turn: Turn) -> list[Contribution | None]:
    """Collect the contributions of the parts. A part that fails contributes nothing."""
    found: list[Contribution | None] = []
    for contribute in parts.overriding("contribute"):
        try:
            found.append(_checked(await contribute(turn)))
        except Exception as error:
            what = f"contribute to turn {turn.request_id}"
            report_failure(cast(Part, contribute.__self__), what, error)
    return found


def _checked(given: object) -> Contribution | None:
    """Return the contribution of a part. Raises if it is invalid, so that only this part is left out."""
    if given is None:
        return None
    if not isinstance(given, Contribution):
        raise TypeError(f"contribute must return a Contribution or None, got {given!r}")
    if given.tools:
        tool_source(given.source, given.tools)
    return given
