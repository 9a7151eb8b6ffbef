"""What the parts of an agent add to a turn: tools, sections of the prompt, capabilities. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Source = Literal["workspace", "agent", "extensions", "session", "skills", "mcp", "client"]
ORDER: tuple[Source, ...] = get_args(Source)
"""Where tools come from. A later source replaces a tool of the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one part adds to a turn. A part of a third party leaves `source` as it is."""

    source: Source = "extensions"
    tools: Sequence[Any] = ()  # functions, tools, toolsets, schemas of the client's tools
    sections: Sequence[str] = ()  # of the system prompt, behind what the agent itself says
    capabilities: Sequence[str] = ()  # lines that tell the model what this turn can do

    def __post_init__(self) -> None:
        if self.source not in ORDER:
            raise ValueError(f"source must be one of {', '.join(ORDER)}, got {self.source!r}")
        for name in ("tools", "sections", "capabilities"):
            given = getattr(self, name)
            if not isinstance(given, list | tuple):
                raise TypeError(f"{name} must be a list, got {given!r}")
        for name in ("sections", "capabilities"):
            for each in getattr(self, name):
                if not isinstance(each, str):
                    raise TypeError(f"{name} must be texts, got {each!r}")


@dataclass(frozen=True, slots=True)
class Contributions:
    """Everything that a turn is given, in order."""

    tools: tuple[tuple[Source, tuple[Any, ...]], ...] = ()  # each source, and what it handed in
    sections: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


def merged(given: Iterable[Contribution | None]) -> Contributions:
    """Put contributions in the order of their sources; those of one source stay in their own order."""
    ordered = sorted(
        (each for each in given if each is not None), key=lambda each: ORDER.index(each.source)
    )
    tools: dict[Source, tuple[Any, ...]] = {}
    for each in ordered:
        if each.tools:
            tools[each.source] = (*tools.get(each.source, ()), *each.tools)
    return Contributions(
        tools=tuple(tools.items()),
        sections=tuple(section for each in ordered for section in each.sections if section),
        capabilities=tuple(line for each in ordered for line in each.capabilities if line),
    )
