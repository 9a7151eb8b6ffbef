"""The texts of a timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.chunk_json import METADATA_KEY
from outlast.core import json

PREVIEW = 80  # characters shown of a text

CLAIMED = "The turn starts: its message is in the transcript."
PUT_BACK = "Its process stopped before the model answered: it waits in the inbox again."
DROPPED = "The output of this step is discarded."
CANCELLED = "It was cancelled."
RUNNING = "It is running."
PERHAPS_RUNNING = "It has not ended. Whether a host is running it is not visible from here."

_ORIGINS = {
    "chat": "chat()",
    "save": "save_messages()",
    "submission": "submit_messages()",
    "continue": "continue_last_turn()",
    "auto": "the answer to its last open call",
    "recovery": "on_recovery_boot",
    "socket": "a WebSocket",
    "http": "HTTP",
}
_KINDS = {
    "message": "",
    "regenerate": "Another answer was requested. ",
    "continue": "The last answer was to be continued. ",
    "add": "Messages were added, without a turn. ",
}
_CAUSES = {
    "crashed": "The process crashed: a signal, or an exit status other than 0.",
    "oom": "The process died: it ran out of memory.",
    "deploy": "The process was stopped before the turn ended.",
    "evicted": "The agent was evicted while the turn was running.",
    "stalled": "The model stopped responding, or its connection broke.",
    "unknown": "The process ended for an unknown reason.",
}
_ACTIONS = {
    "finalise": "The answer was complete: it is stored without another request to the model.",
    "abort": "The turn ends as aborted. The partial answer is kept.",
    "skip": "The turn ends as skipped. Nothing is kept.",
    "seal": "Recovery gives up. The partial answer is kept, and the user sees an error.",
    "stop": "The turn ends as interrupted. The partial answer is kept.",
    "park": "The turn ends, and waits for a person.",
    "requeue": "The turn waits in the inbox again.",
    "retry": "The model is called again.",
    "restart": "The partial answer is discarded, and the model is called again.",
    "continue": "The model is asked to continue where it stopped.",
    "splice": "The turn ends as skipped: the partial answer is kept, and the newer message is answered.",
}
_OUTCOMES = {
    "completed": "Completed",
    "error": "Failed",
    "aborted": "Aborted",
    "skipped": "Skipped",
    "interrupted": "Interrupted for good",
}
_EFFECTS = {
    "read": "may run again",
    "idempotent": "may run again with the same key",
    "once": "never runs again automatically",
}


def short(text: str, most: int = PREVIEW) -> str:
    """Return a text in one line, cut if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def decoded(text: str) -> Any:
    try:
        return json.decode(text)
    except ValueError:
        return None


def value(given: Any, most: int = 60) -> str:
    """Return a JSON value in one line."""
    try:
        return short(json.encode(given), most)
    except TypeError:
        return "…"


def arguments(given: Any) -> str:
    """Return the input of a tool, formatted as arguments of a call."""
    if not isinstance(given, Mapping):
        return "" if given is None else value(given)
    return short(", ".join(f"{name}={value(each, 40)}" for name, each in given.items()), 100)


def duration(milliseconds: int) -> str:
    """Format a duration in a suitable unit.

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
    origin = _ORIGINS.get(entry.origin, entry.origin)
    said = f": “{short(asked)}”" if asked else "."
    return f"{_KINDS.get(entry.kind, '')}Accepted through {origin}{said}"


def waiting(before: int, is_hosted: bool | None) -> str:
    if is_hosted is False:
        return "Waiting. No host has this store open; the next one starts it."
    return f"Waiting for {before} earlier requests." if before else "Waiting to start."


def step(number: int) -> str:
    return f"Step {number}: the model is called."


def said(text: str, thought: int) -> str:
    thinking = f"It reasons ({thought:,} characters)" if thought else ""
    if not text:
        return f"{thinking}."
    speech = f"it says “{short(text)}” ({len(text):,} characters)."
    return f"{thinking}; {speech}" if thinking else f"I{speech[1:]}"


def answer_only(text: str) -> str:
    """Return the text for a turn whose stream was deleted."""
    if not text:
        return "No answer is stored, and the chunks were deleted."
    return f"It said “{short(text)}” ({len(text):,} characters). The chunks were deleted."


def called(name: str, given: Any, effect: str | None) -> str:
    what = f"It calls {name}({arguments(given)})."
    return what if effect is None else f"{what} Effect {effect}: {_EFFECTS.get(effect, effect)}."


def called_again(name: str, effect: str) -> str:
    return f"{name} runs again. Effect {effect}: {_EFFECTS.get(effect, effect)}."


def half_call(name: str) -> str:
    return f"A call of {name} broke off before its input was complete: it was never made."


def returned(name: str, kind: str, chunk: Mapping[str, Any], *, is_unknown: bool) -> str:
    if kind == "tool-output-available":
        return f"{name} returns {value(chunk.get('output'))}."
    if kind == "tool-output-denied":
        return f"{name} was denied."
    if is_unknown:
        return f"The outcome of {name} is unknown: it started, and no result was stored."
    return f"{name} fails: {short(_failure(chunk))}"


def _failure(chunk: Mapping[str, Any]) -> str:
    """Return why a call failed: the tool's exception, which clients do not see, or the text for them."""
    metadata = chunk.get("providerMetadata")
    ours = metadata.get(METADATA_KEY) if isinstance(metadata, Mapping) else None
    detail = ours.get("detail") if isinstance(ours, Mapping) else None
    return str(chunk.get("errorText", "")) if detail is None else str(detail)


def call_ended(name: str, state: str) -> tuple[str, bool]:
    match state:
        case "done":
            return f"{name} returns.", True
        case "unknown":
            return f"The outcome of {name} is unknown: it started, and no result was stored.", False
    return f"{name} fails.", False


def approval(name: str) -> str:
    return f"A person is asked to approve {name}."


def approved(yes: bool) -> str:
    return "Approved." if yes else "Denied."


def interrupted(cause: str) -> str:
    return _CAUSES.get(cause, cause)


_WAYS = {
    "retrieve": "the rest was fetched from the provider",
    "prefill": "the model was given its own words to continue",
    "instruct": "the model was asked to continue",
}
_SEAMS = {
    "spliced": "; {removed} repeated characters were left out",
    "new_paragraph": "; its words begin a new paragraph",
    "replace": "; its new answer replaced the partial one",
}


def decided(action: str) -> str:
    return _ACTIONS.get(action, action)


def continued(attempt: int) -> str:
    return f"Attempt {attempt} starts."


def joined(seam: Mapping[str, Any]) -> str:
    """Describe how the rest of an interrupted text was obtained, and joined to what was there."""
    way = _WAYS.get(str(seam.get("way")), str(seam.get("way")))
    kind = _SEAMS.get(str(seam.get("kind")), "")
    text = way + kind.format(removed=seam.get("removed"))
    held = seam.get("held_ms")
    if isinstance(held, int) and held:
        text += f", decided after {duration(held)}"
    why = seam.get("why_not_better")
    return f"{text} ({why})" if why else text


def settled(outcome: str, took: int | None, attempts: int) -> str:
    what = _OUTCOMES.get(outcome, outcome)
    if took is None:
        return f"{what}, without a turn."
    tries = "" if attempts == 1 else f", in {attempts} attempts"
    return f"{what} after {duration(max(0, took))}{tries}."


def left(cause: str | None) -> str:
    known = "" if cause is None else f" ({cause})"
    return f"Its process is gone{known}. The next host resumes it."
