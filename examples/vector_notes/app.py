"""An assistant that keeps notes, with a script for a model: say "remember …" or "find …".

outlast dev examples/vector_notes/app.py     serves it, with the chat page and the inspector
"""

from __future__ import annotations

from typing import Any

from outlast import Think
from outlast.testing import ScriptedModel, Step
from vector_notes import HasNotes


def answer(messages: list[Any]) -> str | Step:
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return f"Done: {last.content}"
    verb, _, rest = str(last.content).partition(" ")
    match verb.lower():
        case "remember":
            return Step.calls("remember_note", text=rest)
        case "find":
            return Step.calls("find_notes", query=rest)
    return "Say “remember …”, or “find …”."


class Assistant(HasNotes, Think):
    model = ScriptedModel.answering(answer)  # or "anthropic:claude-sonnet-5", …
