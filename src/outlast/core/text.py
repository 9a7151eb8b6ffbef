"""Strings that the store keeps unchanged: names, ids, keys, error messages."""

from __future__ import annotations

from outlast.core.json import mended_text

MAX_KEY_BYTES = 1000  # PostgreSQL indexes about 2,700 bytes, of which an address may take 1,000
MAX_ERROR_CHARACTERS = 10_000


def problem_of(text: object, *, blank: bool = False) -> str | None:
    """Return why this is not a valid key or name ("must be a str, got 3"), or None if it is valid."""
    if not isinstance(text, str):
        return f"must be a str, got {text!r}"
    if not blank and not text.strip():
        return f"must not be blank, got {text!r}"
    if "\0" in text:
        return f"must not contain NUL, got {text!r}"
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return f"must be valid Unicode, got {text!r}"
    if size > MAX_KEY_BYTES:
        return f"must be at most {MAX_KEY_BYTES:,} bytes, got {size:,}"
    return None


def described(error: BaseException) -> str:
    """Return an exception as a string that every store accepts, of limited length."""
    try:
        text = str(error)
    except Exception:  # an exception class of the application
        text = "(no message: its __str__ raised)"
    return storable(f"{type(error).__name__}: {text}")


def storable(text: str) -> str:
    """Return the text without characters that a store rejects, cut to a limited length."""
    return mended_text(text).replace("\0", "\ufffd")[:MAX_ERROR_CHARACTERS]
