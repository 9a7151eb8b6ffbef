"""How the moments of a turn are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.chunk_json import METADATA_KEY
from outlast.core import json

PREVIEW = 80  # characters that are shown of a text

CLAIMED = "The turn begins: its message stands in the transcript."
PUT_BACK = "Its process was stopped before anything was said: it waits for its turn again."
DROPPED = "What was said of this step is taken back."
CANCELLED = "Somebody cancelled it."
RUNNING = "It is being worked on."
PERHAPS_RUNNING = "It is not over. Whether a host works on it cannot be seen from here."

_DOORS = {
    "chat": "chat()",
    "save": "save_messages()",
    "submission": "submit_messages()",
    "continue": "continue_last_turn()",
    "auto": "an answer to its last open call",
    "recovery": "on_recovery_boot",
    "socket": "a WebSocket",
    "http": "HTTP",
}
_KINDS = {
    "message": "",
    "regenerate": "Another answer was asked for. ",
    "continue": "The last answer is to go on. ",
    "add": "Messages were added, without a turn. ",
}
_CAUSES = {
    "crashed": "The process died: a signal, or an exit status other than 0.",
    "oom": "The process died: it had no memory left.",
    "deploy": "The process was stopped, and the turn had not ended in time.",
    "evicted": "The agent was put away while the turn ran.",
    "stalled": "The model fell silent, or its connection broke off.",
    "unknown": "The process ended, and nobody was there to tell why.",
}
_ACTIONS = {
    "finalise": "The answer was whole: it is stored, and the model is not asked again.",
    "abort": "It ends as aborted. What was said is kept.",
    "skip": "It ends, and nothing is kept.",
    "seal": "It is given up. What was said is kept, and the user is told.",
    "stop": "It ends as interrupted. What was said is kept.",
    "park": "It goes on to its end, and waits for a human.",
    "requeue": "It waits for its turn again.",
    "retry": "The model is asked again.",
    "restart": "What was said is thrown away, and the model is asked again.",
    "continue": "The model is asked to go on where it stopped.",
    "splice": "It ends as skipped: what was said is kept, and what the user said since is answered.",
}
_OUTCOMES = {
    "completed": "It is complete",
    "error": "It ended with an error",
    "aborted": "It was aborted",
    "skipped": "It was skipped",
    "interrupted": "It was interrupted, and does not go on",
}
_EFFECTS = {
    "read": "may run again",
    "idempotent": "may run again with the same key",
    "once": "is never run again by itself",
}


def short(text: str, most: int = PREVIEW) -> str:
    """A text in one line, cut if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def decoded(text: str) -> Any:
    try:
        return json.decode(text)
    except ValueError:
        return None


def value(given: Any, most: int = 60) -> str:
    """A JSON value in one line."""
    try:
        return short(json.encode(given), most)
    except TypeError:
        return "…"


def arguments(given: Any) -> str:
    """What a tool was given, as a call is written."""
    if not isinstance(given, Mapping):
        return "" if given is None else value(given)
    return short(", ".join(f"{name}={value(each, 40)}" for name, each in given.items()), 100)


def duration(milliseconds: int) -> str:
    """A time in the unit that suits it.

    ```python
    from outlast.inspect.words import duration
    assert [duration(n) for n in (12, 1_240, 75_000)] == ["12 ms", "1.2 s", "1 min 15 s"]
    ```
    """
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


def accepted(entry: EntryRow, asked: str) -> str:
    door = _DOORS.get(entry.origin, entry.origin)
    said = f": “{short(asked)}”" if asked else "."
    return f"{_KINDS.get(entry.kind, '')}Accepted through {door}{said}"


def waiting(before: int, is_hosted: bool | None) -> str:
    if is_hosted is False:
        return "It waits. No host has this store open: the next one begins with it."
    return f"It waits for {before} before it." if before else "It waits for its turn."


def step(number: int) -> str:
    return f"Step {number}: the model is asked."


def said(text: str, thought: int) -> str:
    thinking = f"It thinks ({thought:,} characters)" if thought else ""
    if not text:
        return f"{thinking}."
    speech = f"it says “{short(text)}” ({len(text):,} characters)."
    return f"{thinking}; {speech}" if thinking else f"I{speech[1:]}"


def answer_only(text: str) -> str:
    """The stream is gone; the transcript is not."""
    if not text:
        return "Nothing of an answer is stored, and the chunks are not kept any more."
    return f"It said “{short(text)}” ({len(text):,} characters). The chunks are not kept any more."


def called(name: str, given: Any, effect: str | None) -> str:
    what = f"It calls {name}({arguments(given)})."
    return what if effect is None else f"{what} Effect {effect}: {_EFFECTS.get(effect, effect)}."


def called_again(name: str, effect: str) -> str:
    return f"{name} is run again. Effect {effect}: {_EFFECTS.get(effect, effect)}."


def half_call(name: str) -> str:
    return f"A call of {name} broke off before its input was whole: it was never made."


def returned(name: str, kind: str, chunk: Mapping[str, Any], *, is_unknown: bool) -> str:
    if kind == "tool-output-available":
        return f"{name} returns {value(chunk.get('output'))}."
    if kind == "tool-output-denied":
        return f"{name} was not allowed."
    if is_unknown:
        return f"What became of {name} is unknown: it had begun, and has no outcome."
    return f"{name} fails: {short(_failure(chunk))}"


def _failure(chunk: Mapping[str, Any]) -> str:
    """Why a call failed: what the tool has raised, which clients do not see, or the text for them."""
    metadata = chunk.get("providerMetadata")
    ours = metadata.get(METADATA_KEY) if isinstance(metadata, Mapping) else None
    detail = ours.get("detail") if isinstance(ours, Mapping) else None
    return str(chunk.get("errorText", "")) if detail is None else str(detail)


def call_ended(name: str, state: str) -> tuple[str, bool]:
    match state:
        case "done":
            return f"{name} returns.", True
        case "unknown":
            return f"What became of {name} is unknown: it had begun, and has no outcome.", False
    return f"{name} fails.", False


def approval(name: str) -> str:
    return f"A human is asked whether {name} may run."


def approved(yes: bool) -> str:
    return "It is allowed." if yes else "It is not allowed."


def interrupted(cause: str) -> str:
    return _CAUSES.get(cause, cause)


def decided(action: str) -> str:
    return _ACTIONS.get(action, action)


def continued(attempt: int) -> str:
    return f"Attempt {attempt} begins."


def settled(outcome: str, took: int | None, attempts: int) -> str:
    what = _OUTCOMES.get(outcome, outcome)
    if took is None:
        return f"{what}, without a turn."
    tries = "" if attempts == 1 else f", in {attempts} attempts"
    return f"{what} after {duration(max(0, took))}{tries}."


def left(cause: str | None) -> str:
    known = "" if cause is None else f" ({cause})"
    return f"The process that worked on it is gone{known}. The next host takes it up."
