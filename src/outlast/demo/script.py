"""What the embedded model says: an answer to each subject, a function of what tools have returned. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@cache
def text(name: str) -> str:
    """One of the longer texts, which stand in files of their own."""
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
    """What has come of a call. `happened` is None when nobody knows."""

    happened: bool | None
    value: Any = None


def answer(prompt: str, results: Mapping[str, Result], files: int = 0) -> Said:
    """What to say to this, given what its tools have returned so far."""
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
            f"You have sent me {what}. I keep what I am given, but I cannot look inside: I am the"
            f" model of a demo. A real one would (`outlast demo --model …`)."
        )
    return Said(text("help"))


def _postcard(result: Result | None) -> Said:
    if result is None:
        return Said(
            "Of course. I write a postcard and take it to the post box; that takes a few seconds. ",
            call="send_postcard",
            arguments={"to": "Ama, The Lighthouse", "text": "Still here. Still going on."},
        )
    if result.happened is None:
        return Said(
            "The server died while the postcard was on its way, so **I do not know whether it was sent**,"
            " and I have not sent it again: somebody might get it twice. Look at the file of postcards"
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
            "I would like to delete the files in `~/holiday-photos`. I may do that only if you allow it. ",
            call="delete_files",
            arguments={"folder": "~/holiday-photos"},
        )
    if result.happened is None:
        return Said("The server died in the middle of it, and I do not know whether it happened.")
    if not result.happened:
        return Said(
            "You have not allowed it, so nothing was deleted. The question itself was stored: it would have"
            " waited for your answer through any number of restarts."
        )
    return Said(
        "Done, with your permission. (Nothing was really deleted: this is a demo, and it has never looked"
        " at your files.) Your answer was stored before I went on, so no restart asks you twice."
    )


def _time(result: Result | None) -> Said:
    if result is None:
        return Said("I ask your browser. ", call="browser_time", arguments={})
    value = result.value if isinstance(result.value, dict) else {}
    if not value:
        return Said("Your browser has not told me.")
    return Said(
        f"Your browser says that it is **{value.get('time', 'unknown')}**, in the time zone"
        f" {value.get('timeZone', 'unknown')}, and that you prefer `{value.get('language', 'unknown')}`."
    )
