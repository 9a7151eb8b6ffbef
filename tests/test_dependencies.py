"""What the package imports is what it declares, up to the next major version."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

# Where something other than the runtime dependencies may be imported, and from which extra it comes.
OPTIONAL = {
    "postgres": ("store/", "inspect/", "cli/stores/", "testing/"),
    "otel": ("observe/",),
    "local": ("demo/local_model.py",),
    "dev": ("testing/",),
}


def distribution(requirement: str) -> str:
    """`pydantic-ai-slim[openai]>=2,<3` is pydantic-ai-slim."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def declared(requirements: list[str]) -> set[str]:
    return {distribution(requirement) for requirement in requirements}


def imported(source: str) -> Iterator[str]:
    """The packages that a module imports, wherever in it, the standard library and itself left out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            package = name.partition(".")[0]
            if package not in sys.stdlib_module_names and package != "outlast":
                yield package


def undeclared(
    module: str, source: str, project: Mapping[str, Any], owners: Mapping[str, list[str]]
) -> set[str]:
    """What a module (its path below the package) imports that it may not count on."""
    allowed = declared(project["dependencies"])
    for extra, places in OPTIONAL.items():
        if module.startswith(places):
            allowed |= declared(project["optional-dependencies"][extra])
    found = set()
    for package in imported(source):
        distributions = {distribution(name) for name in owners.get(package, [package])}
        if not distributions & allowed:
            found.add(package)
    return found


def test_every_import_of_another_package_is_declared() -> None:
    package = ROOT / "src" / "outlast"
    owners = packages_distributions()
    missing = {
        path.relative_to(package).as_posix(): found
        for path in sorted(package.rglob("*.py"))
        if (
            found := undeclared(
                path.relative_to(package).as_posix(), path.read_text(), PROJECT, owners
            )
        )
    }
    assert missing == {}


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("client/x.py", "import websockets", set()),
        ("client/x.py", "def f():\n    from requests import get", {"requests"}),
        ("client/x.py", "import asyncpg", {"asyncpg"}),
        ("store/x.py", "import asyncpg", set()),
        ("chat/x.py", "import pytest", {"pytest"}),
        ("testing/x.py", "import pytest", set()),
        ("chat/x.py", "import json\nfrom outlast.core import ids\nfrom . import y", set()),
    ],
)
def test_an_import_counts_wherever_it_stands_and_an_extra_only_in_its_place(
    module: str, source: str, found: set[str]
) -> None:
    assert undeclared(module, source, PROJECT, {}) == found


def test_every_dependency_ends_before_a_next_major_version() -> None:
    every = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    uncapped = {one for one in every if not re.search(r"<\d+$", one)}
    # Data about the world is not versioned by what it breaks; the project's own extras are no packages.
    assert {distribution(one) for one in uncapped} == {"tzdata", "outlast"}


def test_the_driver_of_postgresql_is_one_that_notices_a_failover() -> None:
    assert EXTRAS["postgres"] == ["asyncpg>=0.32,<1"]
