"""The installed batteries: outlast's own, and those that packages announce.

A package announces its battery in its `pyproject.toml`, so that commands find it without importing it:

    [project.entry-points."outlast.batteries"]
    notes = "vector_notes.battery:BATTERY"

The command line and the inspector use this for a store without a host. It changes no agent: an agent has the
batteries of its base classes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.core.errors import OutlastError
from outlast.core.loading import load

if TYPE_CHECKING:
    from outlast.agent.battery import Battery

GROUP = "outlast.batteries"
# name → "outlast.<name>.…:NAME"
OWN: Mapping[str, str] = {"session": "outlast.session.battery:BATTERY"}


class BatteryUnusable(OutlastError):
    """A battery, or one of its views, cannot be imported or does not work."""


@dataclass(frozen=True, slots=True)
class Installed:
    """An announced battery, not imported yet."""

    name: str
    path: str  # "package.module:NAME" of the `Battery`
    origin: str  # the package that announces it

    def load(self) -> Battery:
        """Import it."""
        found = load_battery(self.path)
        if found.name != self.name:
            raise BatteryUnusable(
                f"{self.origin} announces {self.path} as {self.name!r}, but its name is {found.name!r}"
            )
        return found


def load_battery(path: str) -> Battery:
    """Import the battery at "package.module:NAME"."""
    from outlast.agent.battery import Battery
    from outlast.core.text import described

    try:
        found = load(path)
    except Exception as error:
        raise BatteryUnusable(f"cannot import the battery {path}: {described(error)}") from error
    if not isinstance(found, Battery):
        raise BatteryUnusable(f"{path} must be a Battery, got {found!r}")
    return found


def has_own(name: str) -> bool:
    """Return whether this outlast has a battery of its own with this name."""
    return name in OWN


def installed() -> dict[str, Installed]:
    """Return the announced batteries by name; of two with the same name, the first."""
    found = {name: Installed(name, path, "outlast") for name, path in OWN.items()}
    if not _is_any_announced():
        return found
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        origin = entry.value.partition(".")[0] if entry.dist is None else entry.dist.name
        found.setdefault(entry.name, Installed(entry.name, entry.value, origin))
    return found


def _is_any_announced() -> bool:
    """Check the entry points by hand: importing `importlib.metadata` takes ten times as long."""
    mark = f"[{GROUP}]".encode()
    files = (file for folder in sys.path for file in Path(folder).glob("*-info/entry_points.txt"))
    return any(mark in file.read_bytes() for file in files)
