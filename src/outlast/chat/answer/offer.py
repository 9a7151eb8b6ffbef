"""The tools that the model is offered in each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outlast.chat.tools.declare import ToolCall
from outlast.chat.tools.toolset import Found, Tools, ToolSource

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.tools import ToolDefinition


class Offer:
    """The tools of one turn, those that the current step offers, and the context of that step."""

    def __init__(self, tools: Tools, context: RunContext[Any], known: dict[str, Found]) -> None:
        self.tools = tools
        self.known = known  # all tools of the turn
        self.found: dict[str, Found] = {}  # the tools that the model was offered
        self.given: Any = None  # the `context` of this step's `StepConfig`
        self._context = context

    async def update(
        self, active: Sequence[str] | None, context: RunContext[Any] | None = None
    ) -> list[ToolDefinition]:
        """Return the definitions that the model is offered in the next step; only `active` ones, if given."""
        if context is not None:
            self._context = context
        await self.tools.step(self._context)
        self.known = await self.tools.get(self._context)
        self.found = {
            name: each for name, each in self.known.items() if active is None or name in active
        }
        return [each.definition for each in self.found.values()]

    async def of(self, tools: ToolSource) -> Offer:
        """Return an offer of these tools instead, in the same step."""
        found = await tools.get(self._context)
        made = Offer(
            self.tools, self._context, {name: Found(each, tools) for name, each in found.items()}
        )
        made.found, made.given = made.known, self.given
        return made

    async def run(self, call: ToolCall, arguments: Any, found: Found) -> Any:
        """Call a tool that runs here."""
        context = _copied(self._context)
        context.tool_call_id = call.id
        context.tool_name = call.tool_name
        context.tool_call_approved = call.approved
        context.max_retries = found.tool.max_retries
        toolset = found.source.toolset
        return await toolset.call_tool(call.tool_name, arguments, context, found.tool)


def _copied(context: RunContext[Any]) -> RunContext[Any]:
    """Copy a context. `dataclasses.replace` and `copy` each take as long as a commit."""
    made = object.__new__(type(context))
    made.__dict__.update(context.__dict__)
    return made
