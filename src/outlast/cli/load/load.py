"""What to serve: an `App`, or the agents of a module or of a folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class CannotLoad(Exception):
    """There is nothing to serve there; the message says what to do."""


class NoTarget(CannotLoad):
    """The command line names a file, a module or options that cannot be served, whatever the code says."""


def load(target: str, store: str | None) -> Any:
    """The application that `module:app`, `module`, `file.py:app`, `file.py` or a folder means."""
    from outlast.server import App

    if _is_folder(target):
        return App(agents=_in_folder(Path(target)), store=store)
    place, _, name = target.partition(":")
    module = _module(place)
    apps = {each: value for each, value in vars(module).items() if isinstance(value, App)}
    if name:
        found = apps.get(name)
        if found is None:
            raise CannotLoad(f"{place} has no App called {name!r}{_hint(name, apps)}")
    else:
        found = next(iter(apps.values()), None)
    if found is None:
        from outlast.cli.load.discovery import agents_in

        agents = agents_in(module)
        if not agents:
            raise CannotLoad(f"{place} has neither an App nor a class of agents")
        return App(agents=agents, store=store)
    if store is not None:
        found.use_store(store)
    return found


def _hint(name: str, known: dict[str, Any]) -> str:
    from outlast.cli.suggest import suggestion

    return suggestion(name, known) if known else "; it has none"


def _is_folder(target: str) -> bool:
    """Whether a folder with agents is meant, and not a package that is to be imported."""
    path = Path(target)
    return path.is_dir() and (target.endswith("/") or not (path / "__init__.py").is_file())


def _in_folder(folder: Path) -> list[type[Any]]:
    from outlast.cli.load.discovery import discover

    found = discover(folder)
    if found.problems:
        text = "\n  ".join(["there are problems:", *map(str, found.problems)])
        if len(found.problems) == 1:
            text = f"cannot import {found.problems[0]}"
        raise CannotLoad(text) from found.problems[0].error
    if not found.agents:
        raise CannotLoad(
            f"there are no agents in {folder}: they are looked for in *.py and in */agent.py"
        )
    return found.agents


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise NoTarget(f"there is no file {place}{_near(path)}")
        from outlast.cli.load.discovery import load_file

        sys.path.insert(0, str(path.parent))
        return load_file(path, path.stem)
    if place.endswith("/"):
        raise NoTarget(
            f"there is no folder {place} here; name a file, or start a project: outlast init FOLDER"
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and place.startswith(error.name):
            file = f"; did you mean {place}.py?" if Path(f"{place}.py").is_file() else ""
            raise NoTarget(
                f"there is no module {place!r} here{file or '; a file ends with .py'}"
            ) from None
        raise


def _near(path: Path) -> str:
    """A file of almost that name."""
    from difflib import get_close_matches

    names = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""
