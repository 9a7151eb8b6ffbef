"""The outcome of a call: its result as JSON, a failure, or unknown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outlast.chat.tools.declare import NotDone, ToolCall, ToolSpec, ask
from outlast.core import json
from outlast.core.errors import ApprovalInside
from outlast.core.text import described

logger = logging.getLogger("outlast.chat")

RECONCILE_TIMEOUT = 30.0
UNKNOWN = "The outcome of this call is unknown: {why}. Do not repeat it without asking."


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call; `open` if it waits for an approval, or for the client."""

    state: Literal["done", "failed", "unknown", "open"]
    output: Any = None
    error: str | None = None
    input: Mapping[str, Any] | None = None
    text: str | None = None  # the output as JSON, if it was encoded already
    raised: Exception | None = None  # the exception of the tool, or of a hook
    content: Any = None  # of a `ToolReturn`: more content for the model, in this turn

    def as_json(self) -> str:
        """Return the output as JSON."""
        return json.encode(self.output) if self.text is None else self.text

    def recorded(self) -> str:
        """Return what the ledger stores of a nested call: the output or the error, as JSON."""
        if self.state == "done":
            return self.as_json()
        error = self.error or ""
        is_approval = isinstance(self.raised, ApprovalInside)
        return json.encode({"needs_approval": error} if is_approval else error)


def not_known(effect: str, why: str) -> CallEnd:
    """Return the end of a call that was cut short: unknown for a "once" tool, otherwise failed."""
    if effect == "once":
        return CallEnd("unknown", error=UNKNOWN.format(why=why))
    return CallEnd("failed", error=f"{why[0].upper()}{why[1:]}.")


def returned(output: Any, name: str, effect: str) -> CallEnd:
    """Return the end of a call with this output."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        plain = to_jsonable_python(output, inf_nan_mode="null", bytes_mode="base64")
        return CallEnd("done", output=plain, text=json.encode(plain, "output"))
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        return not_stored(name, effect, described(error))


def not_stored(name: str, effect: str, problem: str) -> CallEnd:
    """Return the end of a call whose result cannot be stored."""
    why = f"the tool {name!r} ran, but its result cannot be stored: {problem}"
    if effect == "once":
        return CallEnd("unknown", error=UNKNOWN.format(why=why))
    return CallEnd("failed", error=f"{why[0].upper()}{why[1:]}")


async def reconciled(agent: object, spec: ToolSpec, call: ToolCall) -> CallEnd | None:
    """Call `reconcile` for an interrupted call. Returns None if it cannot tell the outcome."""
    if spec.reconcile is None:
        return None
    try:
        async with asyncio.timeout(RECONCILE_TIMEOUT):
            found = await ask(agent, spec, spec.reconcile, call)
    except Exception:
        logger.exception("reconcile of tool %s raised", call.tool_name)
        return None
    if found is None:
        return None
    if isinstance(found, NotDone) or found is NotDone:
        return CallEnd("failed", error="The call was interrupted before it had any effect.")
    return returned(found, call.tool_name, spec.effect)
