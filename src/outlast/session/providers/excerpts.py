"""Texts from outside, cut and cleaned for a prompt, a message or the store. Pure."""

from __future__ import annotations

from outlast.core.json import mended_text
from outlast.core.text import described

MAX_SHOWN = 200_000  # characters of one block or entry that the model is shown
MAX_REASON = 200


def cleaned(text: str) -> str:
    """Return the text with the characters replaced that a store rejects: NUL and lone surrogates."""
    return mended_text(text).replace("\0", "\ufffd")


def clipped(text: str, most: int = MAX_SHOWN) -> str:
    """Return the beginning of a text, with a note if anything was cut off."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[{len(text) - most:,} more characters are not shown]"


def in_one_line(text: str) -> str:
    """Return the text with every run of white space as one space."""
    return " ".join(text.split())


def reason(error: BaseException) -> str:
    """Return an exception in one short line for the model, without the paths that errors of files contain."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = in_one_line(described(error))
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}…"
