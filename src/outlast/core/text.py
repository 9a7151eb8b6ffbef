"""Text that goes into the store as it is: names, ids, keys, error messages."""

from __future__ import annotations

from outlast.core.json import mended_text

MAX_KEY_BYTES = 1000  # PostgreSQL indexes about 2,700 bytes, of which an address may take 1,000
MAX_ERROR_CHARACTERS = 10_000


def problem_of(text: object, *, blank: bool = False) -> str | None:
    """What keeps this from being a key or a name in the store, in words; None: nothing does."""
    if not isinstance(text, str):
        return f"is text, not {type(text).__name__} ({text!r})"
    if not blank and not text.strip():
        return f"is not blank, as {text!r} is"
    if "\0" in text:
        return f"is any text without NUL; {text!r} has one"
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return f"is valid Unicode text; {text!r} is not"
    if size > MAX_KEY_BYTES:
        return f"takes at most {MAX_KEY_BYTES:,} bytes; this one takes {size:,}"
    return None


def described(error: BaseException) -> str:
    """An exception as it is stored: always text that every store takes, and not endless."""
    try:
        text = str(error)
    except Exception:  # of the application's own class
        text = "(it has no text)"
    return storable(f"{type(error).__name__}: {text}")


def storable(text: str) -> str:
    """The same text without what a store cannot take."""
    return mended_text(text).replace("\0", "\ufffd")[:MAX_ERROR_CHARACTERS]
