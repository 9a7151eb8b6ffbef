"""A package that announces a battery, as an installed one does."""

from __future__ import annotations

from pathlib import Path


def announce(folder: Path, name: str, path: str, package: str = "vector-notes") -> Path:
    """Write what an installer writes. The folder must be on the path of Python."""
    info = folder / f"{package.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
    with (info / "entry_points.txt").open("a") as file:
        file.write(f"[outlast.batteries]\n{name} = {path}\n")
    return folder
