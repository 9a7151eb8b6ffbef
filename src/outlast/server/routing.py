"""Resolves URLs to agents. Pure.

`/agents/{class}/{name}[/sub/{class}/{name}]…[/rest]`: class names are in kebab case, as the clients write
them. The name of a root is the segment exactly as in the URL, still encoded; names of sub-agents are
decoded.
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
    """Convert a class name to the clients' spelling.

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
    """An agent, and the rest of the path after it."""

    address: Address
    rest: tuple[str, ...] = ()


class NoSuchAgent(Exception):
    """The path is an agent's, but its class does not exist or its name is invalid."""


def resolve(path: str, classes: Sequence[type[Any]], prefix: str = PREFIX) -> Target | None:
    """Resolve a path (still encoded) to an agent; None if it is not below the prefix."""
    segments = [segment for segment in path.split("/") if segment]
    if len(segments) < 3 or segments[0] != prefix:
        return None
    kind = _by_kebab(classes).get(segments[1])
    if kind is None:
        raise NoSuchAgent(f"unknown agent class {segments[1]!r}")
    try:
        target = Target(Address.of(kind.__name__, segments[2]), tuple(segments[3:]))
        return _resolve_sub(target, kind)
    except InvalidName as error:
        raise NoSuchAgent(str(error)) from None


def _resolve_sub(target: Target, kind: type[Any]) -> Target:
    """Resolve the sub-agents in the rest of a path, level by level."""
    while len(target.rest) >= 3 and target.rest[0] == "sub":
        child = _by_kebab(getattr(kind, "sub_agents", ())).get(target.rest[1])
        if child is None:
            break
        if not getattr(kind, "exposes_sub_agents", True):
            raise InvalidName(f"{kind.__name__} does not expose its sub-agents")
        try:
            name = unquote(target.rest[2], errors="strict")
        except UnicodeDecodeError:
            raise InvalidName("the name of a sub-agent must be valid UTF-8") from None
        kind = child
        target = Target(target.address.child(child.__name__, name), target.rest[3:])
    return target


def _by_kebab(classes: Iterable[type[Any]]) -> dict[str, type[Any]]:
    return {kebab(each.__name__): each for each in classes}


def path_of(address: Address, prefix: str = PREFIX) -> str:
    """Return the path of an agent, as `resolve` reads it."""
    (kind, name), *below = address.path
    subs = "".join(f"/sub/{kebab(kind)}/{quote(name, safe='')}" for kind, name in below)
    return f"/{prefix}/{kebab(kind)}/{name}{subs}"
