"""Finds the agent or turn that arguments name, with a suggestion after a typo."""

from __future__ import annotations

from outlast.cli.suggest import match, suggestion
from outlast.host.address import Address, escaped
from outlast.inspect import rows, views
from outlast.inspect.values import NotFound
from outlast.store.catalogue import Reader

MOST_NAMES = 5000  # names to search for a suggestion


async def find_agent(reader: Reader, kind: str, name: str | None) -> Address:
    """Return the agent that a class and a name, or a whole address, identify. It must be in the store."""
    if name is None:
        if "/" not in kind:
            some = await _names(reader, await _kind(reader, kind))
            shown = ", ".join(some[:5]) + (", …" if len(some) > 5 else "")
            raise NotFound(f"a name is required; known names of {kind}: {shown}")
        address = Address.parse(kind)
    else:
        address = Address.of(await _kind(reader, kind), name)
    if not await views.exists(reader, address):
        names = await _names(reader, address.root.kind)
        hint = suggestion(address.root.name, names)
        raise NotFound(f"no agent {address} in this store{hint}")
    return address


async def maybe_agent(reader: Reader, kind: str | None, name: str | None) -> Address | None:
    """Return the same if one is given, else None."""
    return None if kind is None else await find_agent(reader, kind, name)


async def _kind(reader: Reader, given: str) -> str:
    known = await views.kinds(reader)
    found = match(given, known)
    if found is None:
        raise NotFound(f"no agents of class {given!r} in this store{suggestion(given, known)}")
    return found


async def _names(reader: Reader, kind: str) -> list[str]:
    prefix = escaped(kind)
    found = await reader.fetch(rows.NAMES, f"{prefix}/", f"{prefix}0", MOST_NAMES)
    return [Address.parse(text).name for (text,) in found]
