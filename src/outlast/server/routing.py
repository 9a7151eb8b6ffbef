"""Which agent a URL means. Pure.

`/agents/{class}/{name}[/sub/{class}/{name}]…[/rest]`: classes in kebab case, as the clients write them.
The name of a root is the segment as it stands in the URL, still encoded; names of sub-agents are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from outlast.core.errors import InvalidName
from outlast.host.address import Address

PREFIX = "agents"


def kebab(name: str) -> str:
    """A class name as the clients spell it.

    ```python
    from outlast.server.routing import kebab
    names = "FixtureAgent", "AIChat", "MY_BOT"
    assert [*map(kebab, names)] == ["fixture-agent", "a-i-chat", "my-bot"]
    ```
    """
    if name == name.upper() and name != name.lower():
        return name.lower().replace("_", "-")
    spread = re.sub(r"[A-Z]", lambda capital: f"-{capital[0].lower()}", name)
    return spread.removeprefix("-").replace("_", "-").removesuffix("-")


@dataclass(frozen=True, slots=True)
class Target:
    """An agent, and what of the path comes after it."""

    address: Address
    rest: tuple[str, ...] = ()


class NoSuchAgent(Exception):
    """The path looks like one of an agent, and names a class that is not there, or a bad name."""


def resolve(path: str, classes: Sequence[type[Any]], prefix: str = PREFIX) -> Target | None:
    """The agent that a path (still encoded) means. None: it is not a path of agents at all."""
    segments = [segment for segment in path.split("/") if segment]
    if len(segments) < 3 or segments[0] != prefix:
        return None
    kind = _by_kebab(classes).get(segments[1])
    if kind is None:
        raise NoSuchAgent(f"there is no agent {segments[1]!r}")
    try:
        target = Target(Address.of(kind.__name__, segments[2]), tuple(segments[3:]))
        return _resolve_sub(target, kind)
    except InvalidName as error:
        raise NoSuchAgent(str(error)) from None


def _resolve_sub(target: Target, kind: type[Any]) -> Target:
    """The sub-agents that the rest of a path names, level by level."""
    while len(target.rest) >= 3 and target.rest[0] == "sub":
        child = _by_kebab(getattr(kind, "sub_agents", ())).get(target.rest[1])
        if child is None:
            break
        if not getattr(kind, "exposes_sub_agents", True):
            raise InvalidName(f"{kind.__name__} does not expose its sub-agents")
        try:
            name = unquote(target.rest[2], errors="strict")
        except UnicodeDecodeError:
            raise InvalidName("the name of a sub-agent holds bytes that are no text") from None
        kind = child
        target = Target(target.address.child(child.__name__, name), target.rest[3:])
    return target


def _by_kebab(classes: Iterable[type[Any]]) -> dict[str, type[Any]]:
    return {kebab(each.__name__): each for each in classes}


def path_of(address: Address, prefix: str = PREFIX) -> str:
    """The path of an agent, as `resolve` reads it."""
    (kind, name), *below = address.path
    subs = "".join(f"/sub/{kebab(kind)}/{quote(name, safe='')}" for kind, name in below)
    return f"/{prefix}/{kebab(kind)}/{name}{subs}"
