"""Loads what to serve: an `App`, or the agents of a module or a folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class CannotLoad(Exception):
    """There is nothing to serve; the message says what to do."""


class InvalidTarget(CannotLoad):
    """The command line itself is wrong: it names a file, module or options that cannot be served."""


def load(target: str, store: str | None) -> Any:
    """Load the application that `module:app`, `module`, `file.py:app`, `file.py` or a folder names."""
    from outlast.server import App

    if _is_folder(target):
        return App(agents=_in_folder(Path(target)), store=store)
    place, _, name = target.partition(":")
    module = _module(place)
    apps = {each: value for each, value in vars(module).items() if isinstance(value, App)}
    if name:
        found = apps.get(name)
        if found is None:
            raise CannotLoad(f"{place} has no App named {name!r}{_hint(name, apps)}")
    else:
        found = next(iter(apps.values()), None)
    if found is None:
        from outlast.cli.load.discovery import agents_in

        agents = agents_in(module)
        if not agents:
            raise CannotLoad(f"{place} contains neither an App nor an agent class")
        return App(agents=agents, store=store)
    if store is not None:
        found.use_store(store)
    return found


def _hint(name: str, known: dict[str, Any]) -> str:
    from outlast.cli.suggest import suggestion

    return suggestion(name, known) if known else "; it contains none"


def _is_folder(target: str) -> bool:
    """Return whether the target is a folder with agents, and not a package to import."""
    path = Path(target)
    return path.is_dir() and (target.endswith("/") or not (path / "__init__.py").is_file())


def _in_folder(folder: Path) -> list[type[Any]]:
    from outlast.cli.load.discovery import discover

    found = discover(folder)
    if found.problems:
        text = "\n  ".join(["cannot load the agents:", *map(str, found.problems)])
        if len(found.problems) == 1:
            text = f"cannot import {found.problems[0]}"
        raise CannotLoad(text) from found.problems[0].error
    if not found.agents:
        raise CannotLoad(f"no agents in {folder}; put them into *.py or */agent.py")
    return found.agents


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise InvalidTarget(f"file {place} not found{_near(path)}")
        from outlast.cli.load.discovery import load_file

        sys.path.insert(0, str(path.parent))
        return load_file(path, path.stem)
    if place.endswith("/"):
        raise InvalidTarget(
            f"folder {place} not found; give a file, or start a project: outlast init FOLDER"
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and place.startswith(error.name):
            file = f"; did you mean {place}.py?" if Path(f"{place}.py").is_file() else ""
            raise InvalidTarget(
                f"module {place!r} not found{file or '; the name of a file must end with .py'}"
            ) from None
        raise


def _near(path: Path) -> str:
    """Suggest a file with a similar name."""
    from difflib import get_close_matches

    names = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""
