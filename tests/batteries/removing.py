"""Taking a battery away: which there are, the package without one, and a store that has its tables."""

from __future__ import annotations

import ast
import importlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.agent.battery import Battery
from outlast.store.base import Store
from outlast.store.catalogue import columns_of
from outlast.store.operations import BulkStatement, Fence
from outlast.store.schema import Schema

# Where a battery may be named, besides its own folder.
NAMED_IN = ("think.py", "__init__.py", "inspect/batteries.py")
SOME: dict[str, Any] = {"text": "x", "integer": 1, "bigint": 1, "blob": b"x", "bytea": b"x"}


@dataclass(frozen=True, slots=True)
class Defined:
    """A battery, and where it is defined."""

    name: str
    folder: str  # of the package
    module: str

    def load(self) -> Battery:
        """The battery itself, wherever its module has it."""
        module = importlib.import_module(self.module)
        places = [
            vars(module),
            *(vars(each) for each in vars(module).values() if isinstance(each, type)),
        ]
        found = (value for place in places for value in place.values())
        return next(each for each in found if isinstance(each, Battery) and each.name == self.name)


def defined_in(package: Path) -> list[Defined]:
    """The batteries that folders of a package define, found in their source."""
    files = (path for path in sorted(package.rglob("*.py")) if path.parent != package)
    sources = ((path, path.read_text()) for path in files)
    return [
        Defined(name, path.relative_to(package).parts[0], _module(package, path))
        for path, source in sources
        if "Battery(" in source  # parsing all of it takes seconds
        for name in _names(ast.parse(source))
    ]


def _module(package: Path, path: Path) -> str:
    inside = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(inside).removesuffix(".__init__")


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Battery":
            for keyword in node.keywords:
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value)


def take_away(package: Path, folder: str) -> None:
    """Delete a folder of a package, and what names it in the places that may."""
    shutil.rmtree(package / folder)
    for name in NAMED_IN:
        path = package / name
        if path.is_file():
            tree = _Without(folder).visit(ast.parse(path.read_text()))
            path.write_text(ast.unparse(ast.fix_missing_locations(tree)))


class _Without(ast.NodeTransformer):
    """Drops the imports of a folder, and where the imported names are bases, public, or in a table."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._names: set[str] = set()

    def _is_in_it(self, path: str) -> bool:
        inside = path.removeprefix("outlast.").replace(":", ".")
        return inside == self._folder or inside.startswith(f"{self._folder}.")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        if not self._is_in_it(node.module or ""):
            return node
        self._names |= {alias.asname or alias.name for alias in node.names}
        return None

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.bases = [each for each in node.bases if getattr(each, "id", None) not in self._names]
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        kept = [
            (key, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if not (isinstance(value, ast.Constant) and self._is_in_it(str(value.value)))
        ]
        return ast.Dict([key for key, _ in kept], [value for _, value in kept])

    def visit_List(self, node: ast.List) -> ast.AST:
        node.elts = [
            each
            for each in node.elts
            if not (isinstance(each, ast.Constant) and each.value in self._names)
        ]
        return node


async def add_rows(store: Store, schema: Schema, agent: str) -> None:
    """Write a row into each table of a schema that has rows of agents, whatever its columns are."""
    tables = await columns_of(store)
    operations = []
    for table, owner in schema.owned.items():
        kinds = tables[table]
        names = ", ".join(f'"{name}"' for name in kinds)
        values = tuple(agent if name == owner else SOME[kind] for name, kind in kinds.items())
        sql = f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(kinds))})"
        operations.append((BulkStatement.same(f"{table} fill", sql), values))
    await store.commit(Fence.after(agent, "somebody", None), operations)
