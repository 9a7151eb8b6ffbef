"""Finds agents in a folder.

It looks for agent classes in `agents/*.py` and `agents/*/agent.py`. Classes in `agents/*/agents/`, found
the same way, become sub-agents of the class in the `agent.py` above them. Files, folders and classes whose
names start with `_` or `.` are ignored.

Problems are collected and reported together: files that cannot be imported, with the line, and classes of
the same name, with both files.
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

from outlast.cli.load.errors import error_text, own_place, relative

PACKAGE = "agents_found"  # the package name of the folder, unlike any installed one


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
class Discovery:
    """The agents of a folder."""

    agents: list[type[Any]] = field(default_factory=list)
    places: dict[str, Path] = field(default_factory=dict)  # by class name, including sub-agents
    problems: list[Problem] = field(default_factory=list)


def discover(folder: Path) -> Discovery:
    """Import the files of a folder, and collect its agents."""
    found = Discovery()
    folder = folder.resolve()
    for place in (folder.parent, folder):  # `import shared`, `from agents.shared import x`
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    found.agents = _in_folder(folder, _package(PACKAGE, folder), found)
    return found


def _in_folder(folder: Path, package: str, found: Discovery) -> list[type[Any]]:
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
        own = _record(agents_in(module), path, found)
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
    parents: list[type[Any]], below: Path, package: str, path: Path, found: Discovery
) -> None:
    children = _in_folder(below, _package(f"{package}.agents", below), found)
    if children and len(parents) != 1:
        text = (
            f"sub-agents in {relative(below)} need exactly one agent class here, got {len(parents)}"
        )
        found.problems.append(Problem(relative(path), text))
        return
    for parent in parents:
        known = [each for each in parent.sub_agents if each not in children]
        parent.sub_agents = [*known, *children]


def _record(agents: list[type[Any]], path: Path, found: Discovery) -> list[type[Any]]:
    kept = []
    for agent in agents:
        other = found.places.get(agent.__name__)
        if other is not None:
            text = (
                f"{agent.__name__} is also in {relative(other)}; rename one, because the name is part of the"
                " address under which agents are stored"
            )
            found.problems.append(Problem(relative(path), text))
            continue
        found.places[agent.__name__] = path
        kept.append(agent)
    return kept


def agents_in(module: ModuleType) -> list[type[Any]]:
    """Return the agent classes that a module defines, without those that it imports."""
    from outlast.agent.agent import Agent

    found = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Agent)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]
    return list(dict.fromkeys(found))  # a class may have two names


# --- importing -----------------------------------------------------------------------------------


def load_file(path: Path, name: str) -> ModuleType:
    """Import a file as a module with this name."""
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
    """Make a folder a package, so that its files can use relative imports."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module
    return name


def problem_with(error: BaseException, path: Path) -> Problem:
    """Describe what is wrong with a file: the line, the error, and where it was raised if elsewhere."""
    place = own_place(error)
    if place is not None and place[0] == path:
        return Problem(relative(path), error_text(error), place[1], error)
    frames = reversed(traceback.extract_tb(error.__traceback__))
    line = next((frame.lineno for frame in frames if frame.filename == str(path)), None)
    elsewhere = "" if place is None else f" ({relative(place[0])}:{place[1]})"
    return Problem(relative(path), f"{error_text(error)}{elsewhere}", line, error)
