"""The decisions that `before_tool_call` may return. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.chat.types.contexts import Allow, Block, Substitute

_DECISIONS: dict[str, Any] = {"allow": Allow, "block": Block, "substitute": Substitute}


class InvalidDecision(TypeError):
    """`before_tool_call` did not return a decision, which is a bug in the application.

    It ends the turn, so that the developer sees it; the model could not do anything about it.
    """


def decided(given: Any) -> Allow | Block | Substitute | None:
    """Return a decision, given as an object or as a dict with an `action`."""
    if isinstance(given, Mapping):
        rest = {name: value for name, value in given.items() if name != "action"}
        action = given.get("action")
        kind = _DECISIONS.get(action) if isinstance(action, str) else None
        try:
            given = given if kind is None else kind(**rest)
        except TypeError as error:
            raise InvalidDecision(f"before_tool_call returned {given!r}: {error}") from None
    if isinstance(given, Allow) and not isinstance(given.input, Mapping | None):
        raise InvalidDecision(f"Allow(input=) must be a dict, got {given.input!r}")
    if given is None or isinstance(given, Allow | Block | Substitute):
        return given
    raise InvalidDecision(
        "before_tool_call must return Allow, Block, Substitute, a dict with the action 'allow', 'block' or"
        f" 'substitute', or None, got {given!r}"
    )
