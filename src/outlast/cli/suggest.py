"""Suggestions after a misspelled name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 8  # names that are listed


def match(given: str, known: Iterable[str]) -> str | None:
    """Return the known name that equals the given one up to its spelling.

    ```python
    from outlast.cli.suggest import match
    assert match("support-agent", ["Assistant", "SupportAgent"]) == "SupportAgent"
    assert match("assistent", ["Assistant"]) is None
    ```
    """
    names = list(known)
    if given in names:
        return given
    return next((name for name in names if _plain(name) == _plain(given)), None)


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return a suggestion, or the known names, to be appended to an error.

    ```python
    from outlast.cli.suggest import suggestion
    assert suggestion("asistant", ["Assistant", "Clerk"]) == ". Did you mean 'Assistant'?"
    assert suggestion("x", ["Assistant", "Clerk"]) == ". Known names: Assistant, Clerk"
    ```
    """
    names = {_plain(name): name for name in known}
    if not names:
        return "; there are none"
    close = get_close_matches(_plain(given), names, n=1, cutoff=0.6)
    if close:
        return f". Did you mean {names[close[0]]!r}?"
    some = list(names.values())[:MOST]
    return f". Known names: {', '.join(some)}" + (", …" if len(names) > MOST else "")


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
