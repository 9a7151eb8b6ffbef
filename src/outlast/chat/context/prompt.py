"""The system prompt: the user's or a careful default, followed by the capabilities of the turn."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT = """\
You are a careful assistant. Answer what was asked, and say so when you do not know something or cannot do
it. Before you act, be sure that you have understood; ask when it matters. Use tools when they help, one
purpose at a time, and read their results: never claim to have done what no result shows. When a tool
fails, say what happened and try another way or stop. When the outcome of an action is unknown, say that it
is unknown, and do not repeat it by yourself. Keep secrets out of your answers. Be brief and plain."""

_TITLE = "Capabilities in this turn"


def with_capabilities(system: str, tool_names: Sequence[str], more: Sequence[str] = ()) -> str:
    """Append the capabilities of this turn to the prompt. Idempotent."""
    if _TITLE in system:
        return system
    if tool_names:
        able = f"You can call these tools, and no others: {', '.join(sorted(tool_names))}."
    else:
        able = "You have no tools in this turn: you can only answer."
    lines = [
        f"{_TITLE}:",
        f"- {able}",
        "- The conversation is stored and survives restarts; an interrupted answer may be continued.",
        *(f"- {line}" for line in more),
        "- Do not claim abilities that are not listed here.",
    ]
    return "\n\n".join(part for part in (system.rstrip(), "\n".join(lines)) if part)
