"""Calls of an earlier process: their recorded outcomes, and how to determine the missing ones."""

from __future__ import annotations

from outlast.chat.tools.declare import ToolCall, ToolSpec
from outlast.chat.tools.ledger import CallRow, input_of
from outlast.chat.tools.outcome import CallEnd, not_known, reconciled
from outlast.core import json
from outlast.core.errors import ApprovalInside

DIED = "the process ended while the tool was running"
FAILED = "The call failed."


def recorded_end(row: CallRow) -> CallEnd | None:
    """Return the recorded end of a nested call, or None if it has none yet."""
    if row.state == "begun":
        return None
    kept = None if row.output is None else json.decode(row.output)
    if row.state == "done":
        return CallEnd("done", output=kept)
    if isinstance(kept, dict):
        text = str(kept.get("needs_approval", FAILED))
        return CallEnd(row.state, error=text, raised=ApprovalInside(text))
    return CallEnd(row.state, error=kept if isinstance(kept, str) and kept else FAILED)


async def interrupted_end(
    agent: object, row: CallRow, spec: ToolSpec | None, message_id: str | None
) -> CallEnd:
    """Return the end of a call that had begun: the answer of `reconcile`, or an unknown outcome."""
    if row.effect == "once" and spec is not None:
        key = row.key or f"{message_id}:{row.id}"
        call = ToolCall(row.id, row.name, input_of(row), key, row.turn)
        found = await reconciled(agent, spec, call)
        if found is not None:
            return found
    return not_known(row.effect, DIED)


def nested_rows(rows: list[CallRow]) -> dict[str, str]:
    """Return the rows of nested calls, each with the call in the message around it."""
    ids = {row.id for row in rows}
    roots: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: len(row.id)):
        parent = row.id.rpartition("/")[0]
        if parent in ids:
            roots[row.id] = roots.get(parent, parent)
    return roots
