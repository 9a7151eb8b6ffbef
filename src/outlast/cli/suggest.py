"""What may have been meant by a name that is none."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 8  # names that are listed


def match(given: str, known: Iterable[str]) -> str | None:
    """The one of these that is meant, however it is spelt.

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
    """What may have been meant, or what there is; to be added to what is wrong.

    ```python
    from outlast.cli.suggest import suggestion
    assert suggestion("asistant", ["Assistant", "Clerk"]) == ". Did you mean 'Assistant'?"
    assert suggestion("x", ["Assistant", "Clerk"]) == ". There are: Assistant, Clerk"
    ```
    """
    names = {_plain(name): name for name in known}
    if not names:
        return ", or of any other name"
    close = get_close_matches(_plain(given), names, n=1, cutoff=0.6)
    if close:
        return f". Did you mean {names[close[0]]!r}?"
    some = list(names.values())[:MOST]
    return f". There are: {', '.join(some)}" + (", …" if len(names) > MOST else "")


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
