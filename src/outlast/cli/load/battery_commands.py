"""Commands of batteries: listed by name, and imported when one runs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from outlast.inspect.batteries import Installed


# Commands of batteries that stand among those of outlast: the battery, and what the command does.
SHORTCUTS = {"search": ("session", "Search the messages of agents in a store.")}


class Commands(TyperGroup):
    """The commands of `outlast`, followed by those of the installed batteries."""

    @cached_property
    def _batteries(self) -> dict[str, Installed]:
        from outlast.inspect.batteries import installed

        return {name: found for name, found in installed().items() if name not in self.commands}

    @cached_property
    def _shortcuts(self) -> list[str]:
        return [name for name, (battery, _) in SHORTCUTS.items() if battery in self._batteries]

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *self._shortcuts, *self._batteries]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        if cmd_name in self._shortcuts:
            battery, about = SHORTCUTS[cmd_name]
            return _Shortcut(self._batteries[battery], cmd_name, about)
        found = self._batteries.get(cmd_name)
        return None if found is None else _BatteryCommand(found)


class _BatteryCommand(TyperCommand):
    """Stands for the commands of a battery until they are imported."""

    def __init__(self, battery: Installed) -> None:
        super().__init__(battery.name, help=f"Commands of a battery, from {battery.origin}.")
        self._battery = battery

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> Any:
        return self._loaded().make_context(info_name, args, *rest, **more)

    def _loaded(self) -> Any:
        from outlast.cli.output import fail
        from outlast.core.loading import load
        from outlast.core.text import described
        from outlast.inspect.batteries import BatteryUnusable

        name = self._battery.name
        try:
            path = self._battery.load().commands
        except BatteryUnusable as error:
            fail(str(error))
        if path is None:
            fail(
                f"the battery {name!r} has no commands; outlast inspect battery {name} AGENT shows"
                " its tables"
            )
        try:
            return typer.main.get_group(load(path))
        except Exception as error:
            fail(f"cannot import the commands of the battery {name!r}: {described(error)}")


class _Shortcut(_BatteryCommand):
    """Stands for one command of a battery."""

    def __init__(self, battery: Installed, name: str, about: str) -> None:
        super().__init__(battery)
        self.name, self.help = name, about

    def _loaded(self) -> Any:
        return super()._loaded().commands[self.name]
