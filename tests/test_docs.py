"""Every Python example in the docs and in the docstrings runs.

A fenced block that starts with ```python is executed; blocks of one page or docstring share their names,
and may use `await`. An example that cannot run stands in a block that starts with ```python no-run.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^([ \t]*)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def pages() -> Iterator[tuple[str, str]]:
    """Every text that may hold examples, with where it stands."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield str(path.relative_to(ROOT)), path.read_text()
    for path in sorted((ROOT / "src").rglob("*.py")):
        source = path.read_text()
        if "```python" not in source:
            continue  # every process of a test run comes here: parsing all of it takes seconds
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path.relative_to(ROOT)}::{getattr(node, 'name', 'module')}"
                yield name, ast.get_docstring(node) or ""


EXAMPLES = [
    pytest.param(name, text, id=name) for name, text in pages() if BLOCK.search(text) is not None
]


@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_example_runs(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    ran = 0

    async def run() -> None:
        nonlocal ran
        for match in BLOCK.finditer(text):
            source = inspect.cleandoc("\n" + match[2])
            line = text[: match.start()].count("\n") + 1
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile("\n" * line + source, name, "exec", flags=flags, dont_inherit=True)
            result = eval(code, module.__dict__)
            if inspect.isawaitable(result):
                await result
            ran += 1

    asyncio.run(run())
    assert ran == len(BLOCK.findall(text))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3
