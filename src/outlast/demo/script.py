"""The answers of the embedded model: one per subject, as a function of tool results. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@cache
def text(name: str) -> str:
    """Return one of the longer texts, which are separate files."""
    place = resources.files("outlast.demo") / "said" / f"{name}.md"
    return place.read_text(encoding="utf-8").strip()


@dataclass(frozen=True, slots=True)
class Said:
    """An answer: thoughts, a text, then a call."""

    text: str = ""
    thoughts: str = ""
    call: str | None = None
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call. `happened` is None when the outcome is unknown."""

    happened: bool | None
    value: Any = None


def answer(prompt: str, results: Mapping[str, Result], files: int = 0) -> Said:
    """Return the answer to this prompt, given the results of its tools so far."""
    asked = prompt.casefold()
    if "postcard" in asked:
        return _postcard(results.get("send_postcard"))
    if "delete" in asked or "remove" in asked:
        return _deletion(results.get("delete_files"))
    if "time" in asked or "browser" in asked or "clock" in asked:
        return _time(results.get("browser_time"))
    if "think" in asked or "reason" in asked:
        return Said(text("thought"), thoughts=text("thoughts"))
    if "code" in asked or "table" in asked or "markdown" in asked:
        return Said(text("code"))
    if "story" in asked or "long" in asked:
        return Said(text("story"))
    if files:
        what = "a file" if files == 1 else f"{files} files"
        return Said(
            f"You sent me {what}. I keep it, but I cannot look inside: I am the model of a demo."
            " A real one would (`outlast demo --model …`)."
        )
    return Said(text("help"))


def _postcard(result: Result | None) -> Said:
    if result is None:
        return Said(
            "Of course. I'll write a postcard and take it to the post box; that takes a few seconds. ",
            call="send_postcard",
            arguments={"to": "Ama, The Lighthouse", "text": "Still here. Still going."},
        )
    if result.happened is None:
        return Said(
            "The server died while the postcard was on its way, so **I do not know whether it was sent**."
            " I did not send it again, because somebody might get it twice. Look at the file of postcards"
            " to find out, or tell me to send another one."
        )
    if not result.happened:
        return Said("That did not work; the postcard was not sent.")
    value = result.value if isinstance(result.value, dict) else {}
    count, file = value.get("postcards_sent", "?"), value.get("file", "a file")
    return Said(
        f"It is on its way. That makes **{count}** in `{file}`: one line each, so that you can count them"
        " yourself, however often you kill me."
    )


def _deletion(result: Result | None) -> Said:
    if result is None:
        return Said(
            "I would like to delete the files in `~/holiday-photos`. I need your approval for that. ",
            call="delete_files",
            arguments={"folder": "~/holiday-photos"},
        )
    if result.happened is None:
        return Said("The server died in the middle of it, so I do not know whether it happened.")
    if not result.happened:
        return Said(
            "You did not approve it, so nothing was deleted. The question itself was stored: it would have"
            " waited for your answer through any number of restarts."
        )
    return Said(
        "Done, with your approval. (Nothing was really deleted: this is a demo, and it never looked"
        " at your files.) Your answer was stored before I continued, so no restart asks you twice."
    )


def _time(result: Result | None) -> Said:
    if result is None:
        return Said("I'll ask your browser. ", call="browser_time", arguments={})
    value = result.value if isinstance(result.value, dict) else {}
    if not value:
        return Said("Your browser did not respond.")
    return Said(
        f"Your browser says that it is **{value.get('time', 'unknown')}**, in the time zone"
        f" {value.get('timeZone', 'unknown')}, and that you prefer `{value.get('language', 'unknown')}`."
    )
