"""Which agent is meant, and which turn: with a suggestion if there is none of that name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from outlast.host.address import Address, escaped
from outlast.inspect import rows, views
from outlast.inspect.reading import Reader
from outlast.inspect.values import NotFound

MOST_NAMES = 5000  # that are looked through for a suggestion


async def find_agent(reader: Reader, kind: str, name: str | None) -> Address:
    """The agent that a class and a name mean, or a whole address. It must be in the store."""
    if name is None:
        if "/" not in kind:
            some = await _names(reader, await _kind(reader, kind))
            shown = ", ".join(some[:5]) + (", …" if len(some) > 5 else "")
            raise NotFound(f"which {kind} is meant? There are: {shown}")
        address = Address.parse(kind)
    else:
        address = Address.of(await _kind(reader, kind), name)
    if not await views.exists(reader, address):
        names = await _names(reader, address.root.kind)
        hint = suggestion(address.root.name, names)
        raise NotFound(f"there is no agent {address} in this store{hint}")
    return address


async def maybe_agent(reader: Reader, kind: str | None, name: str | None) -> Address | None:
    """The same, if one was given."""
    return None if kind is None else await find_agent(reader, kind, name)


async def _kind(reader: Reader, given: str) -> str:
    known = await views.kinds(reader)
    found = match(given, known)
    if found is None:
        raise NotFound(f"there are no agents of the class {given!r} here{suggestion(given, known)}")
    return found


async def _names(reader: Reader, kind: str) -> list[str]:
    prefix = escaped(kind)
    found = await reader.fetch(rows.NAMES, f"{prefix}/", f"{prefix}0", MOST_NAMES)
    return [Address.parse(text).name for (text,) in found]


def match(given: str, known: Iterable[str]) -> str | None:
    """The one of these that is meant, however it is spelt.

    ```python
    from outlast.cli.finding import match
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
    from outlast.cli.finding import suggestion
    assert suggestion("asistant", ["Assistant", "Clerk"]) == ". Did you mean 'Assistant'?"
    assert suggestion("x", ["Assistant", "Clerk"]) == ". There are: Assistant, Clerk"
    ```
    """
    names = {_plain(name): name for name in known}
    if not names:
        return ", or of any other"
    close = get_close_matches(_plain(given), names, n=1, cutoff=0.6)
    if close:
        return f". Did you mean {names[close[0]]!r}?"
    some = list(names.values())[:8]
    return f". There are: {', '.join(some)}" + (", …" if len(names) > 8 else "")


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
