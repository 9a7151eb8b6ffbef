"""Describes errors in the user's own code."""

from __future__ import annotations

import site
import sysconfig
import traceback
from functools import cache
from pathlib import Path

OURS = Path(__file__).resolve().parents[2]


def own_place(error: BaseException) -> tuple[Path, int] | None:
    """Return file and line of the user's code that raised an error, skipping libraries and outlast."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return Path(error.filename), error.lineno
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.lineno is not None and _is_own(frame.filename):
            return Path(frame.filename), frame.lineno
    return None


def _is_own(filename: str) -> bool:
    if filename.startswith("<"):  # <frozen importlib._bootstrap>
        return False
    path = Path(filename).resolve()
    return not any(path.is_relative_to(each) for each in _libraries())


@cache
def _libraries() -> set[Path]:
    names = {"stdlib", "platstdlib", "purelib", "platlib"}
    paths = {value for name, value in sysconfig.get_paths().items() if name in names}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    return {OURS, *(Path(each).resolve() for each in paths)}


def error_text(error: BaseException) -> str:
    """Return the class of an error and its message."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    name = type(error).__name__
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        text += f". Is {error.name.partition('.')[0]} installed?"
    return f"{name}: {text}" if text else name


def relative(path: Path) -> Path:
    """Return the path relative to the working directory, if it is below that."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except (ValueError, OSError):
        return path
