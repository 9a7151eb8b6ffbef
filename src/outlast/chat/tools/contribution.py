"""Contributions of parts to a turn: tools, sections of the prompt, capabilities. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Source = Literal["workspace", "agent", "extensions", "session", "skills", "mcp", "client"]
ORDER: tuple[Source, ...] = get_args(Source)
"""The sources of tools. A later source replaces a tool of the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one part adds to a turn. Third-party parts use the default `source`."""

    source: Source = "extensions"
    tools: Sequence[Any] = ()  # functions, tools, toolsets, schemas of the client's tools
    system: str | None = None  # the system prompt, in place of `get_system_prompt()`
    sections: Sequence[str] = ()  # of the system prompt, after the agent's own
    reminders: Sequence[str] = ()  # behind the conversation, so that a cached prompt stays valid
    capabilities: Sequence[str] = ()  # lines that tell the model what this turn can do

    def __post_init__(self) -> None:
        if self.source not in ORDER:
            raise ValueError(f"source must be one of {', '.join(ORDER)}, got {self.source!r}")
        if self.system is not None and not isinstance(self.system, str):
            raise TypeError(f"system must be a str or None, got {self.system!r}")
        for name in ("tools", "sections", "reminders", "capabilities"):
            given = getattr(self, name)
            if not isinstance(given, list | tuple):
                raise TypeError(f"{name} must be a list, got {given!r}")
        for name in ("sections", "reminders", "capabilities"):
            for each in getattr(self, name):
                if not isinstance(each, str):
                    raise TypeError(f"{name} must contain only str, got {each!r}")


@dataclass(frozen=True, slots=True)
class Contributions:
    """All contributions to a turn, in order."""

    tools: tuple[tuple[Source, tuple[Any, ...]], ...] = ()  # by source
    system: str | None = None
    sections: tuple[str, ...] = ()
    reminders: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


def merged(given: Iterable[Contribution | None]) -> Contributions:
    """Merge contributions in the order of their sources; those of one source keep their order."""
    ordered = sorted(
        (each for each in given if each is not None), key=lambda each: ORDER.index(each.source)
    )
    tools: dict[Source, tuple[Any, ...]] = {}
    for each in ordered:
        if each.tools:
            tools[each.source] = (*tools.get(each.source, ()), *each.tools)
    return Contributions(
        tools=tuple(tools.items()),
        system=next((each.system for each in reversed(ordered) if each.system is not None), None),
        sections=tuple(section for each in ordered for section in each.sections if section),
        reminders=tuple(text for each in ordered for text in each.reminders if text),
        capabilities=tuple(line for each in ordered for line in each.capabilities if line),
    )
