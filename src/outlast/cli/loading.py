"""What to serve: an `App`, or the agents of a module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class CannotLoad(Exception):
    """There is nothing to serve there; the message says what to do."""


def load(target: str, store: str | None) -> Any:
    """The application that `module:app`, `module`, `file.py:app` or `file.py` means."""
    from outlast.agent.agent import Agent
    from outlast.server import App

    place, _, name = target.partition(":")
    module = _module(place)
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, App):
            raise CannotLoad(f"{place} has no App called {name!r}")
    else:
        apps = [value for value in vars(module).values() if isinstance(value, App)]
        found = apps[0] if apps else None
    if found is None:
        agents = [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, Agent)
            and value.__module__ == module.__name__
        ]
        if not agents:
            raise CannotLoad(f"{place} has neither an App nor a class of agents")
        return App(agents=agents, store=store)
    if store is not None:
        found.use_store(store)
    return found


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise CannotLoad(f"there is no file {place}")
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and place.startswith(error.name):
            raise CannotLoad(f"there is no module {place!r} here; a file ends with .py") from None
        raise
