"""Finding agents in a folder.

`agents/*.py` and `agents/*/agent.py` are looked through for classes of agents. Those in `agents/*/agents/`,
found the same way, are the sub-agents of those in the `agent.py` above them. A name that starts with `_` or
`.` is left out: of a file, a folder or a class.

Whatever is wrong is gathered, so that it can be told all at once: files that cannot be imported, with the
line, and classes of one name, with both their places.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from outlast.cli.load.places import named, own_place, shown

PACKAGE = "agents_found"  # what the folder is as a package: no installed one is called so


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that cannot be used, and why."""

    path: Path
    text: str
    line: int | None = None
    error: BaseException | None = None

    def __str__(self) -> str:
        place = f"{self.path}" if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.text}"


@dataclass(slots=True)
class Found:
    """What a folder holds."""

    agents: list[type[Any]] = field(default_factory=list)
    places: dict[str, Path] = field(default_factory=dict)  # by the names of classes, sub-agents too
    problems: list[Problem] = field(default_factory=list)


def discover(folder: Path) -> Found:
    """Import what is in a folder, and gather its agents."""
    found = Found()
    folder = folder.resolve()
    for place in (folder.parent, folder):  # `import shared`, `from agents.shared import x`
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    found.agents = _in_folder(folder, _package(PACKAGE, folder), found)
    return found


def _in_folder(folder: Path, package: str, found: Found) -> list[type[Any]]:
    agents: list[type[Any]] = []
    for path in _candidates(folder):
        inner = path.name == "agent.py" and path.parent != folder
        name = f"{package}.{path.stem}"
        if inner:
            name = f"{_package(f'{package}.{path.parent.name}', path.parent)}.agent"
        try:
            module = load_file(path, name)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            found.problems.append(problem_with(error, path))
            continue
        own = _noted(agents_in(module), path, found)
        agents += own
        below = path.parent / "agents"
        if inner and below.is_dir():
            _with_sub_agents(own, below, name.rpartition(".")[0], path, found)
    return agents


def _candidates(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(("_", ".")):
            continue
        if path.suffix == ".py" and path.is_file():
            yield path
        elif path.is_dir() and (path / "agent.py").is_file():
            yield path / "agent.py"


def _with_sub_agents(
    parents: list[type[Any]], below: Path, package: str, path: Path, found: Found
) -> None:
    children = _in_folder(below, _package(f"{package}.agents", below), found)
    if children and len(parents) != 1:
        text = (
            f"sub-agents in {shown(below)} need exactly one agent here, and it has {len(parents)}"
        )
        found.problems.append(Problem(shown(path), text))
        return
    for parent in parents:
        known = [each for each in parent.sub_agents if each not in children]
        parent.sub_agents = [*known, *children]


def _noted(agents: list[type[Any]], path: Path, found: Found) -> list[type[Any]]:
    kept = []
    for agent in agents:
        other = found.places.get(agent.__name__)
        if other is not None:
            text = (
                f"{agent.__name__} is also in {shown(other)}; rename one, since the name is part of the"
                f" address under which its agents are stored"
            )
            found.problems.append(Problem(shown(path), text))
            continue
        found.places[agent.__name__] = path
        kept.append(agent)
    return kept


def agents_in(module: ModuleType) -> list[type[Any]]:
    """The classes of agents that a module defines; not those that it has imported."""
    from outlast.agent.agent import Agent

    found = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Agent)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]
    return list(dict.fromkeys(found))  # one may have two names


# --- importing -----------------------------------------------------------------------------------


def load_file(path: Path, name: str) -> ModuleType:
    """The module that a file is, under a name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _package(name: str, folder: Path) -> str:
    """A folder as a package, so that its files can import each other with a dot."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module
    return name


def problem_with(error: BaseException, path: Path) -> Problem:
    """What is wrong with a file: the line in it, the error, and where that was raised if it was elsewhere."""
    place = own_place(error)
    if place is not None and place[0] == path:
        return Problem(shown(path), named(error), place[1], error)
    frames = reversed(traceback.extract_tb(error.__traceback__))
    line = next((frame.lineno for frame in frames if frame.filename == str(path)), None)
    elsewhere = "" if place is None else f" ({shown(place[0])}:{place[1]})"
    return Problem(shown(path), f"{named(error)}{elsewhere}", line, error)
