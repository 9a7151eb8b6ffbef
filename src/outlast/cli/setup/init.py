"""`outlast init`: a new project with an agent, a test that crashes it, and a Dockerfile."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from outlast.cli.models import PROVIDERS, problems_of
from outlast.cli.output import console, fail

FILES = {
    "agents/assistant.py": "assistant.py.txt",
    "app.py": "app.py.txt",
    "tests/test_assistant.py": "test_assistant.py.txt",
    "pyproject.toml": "pyproject.toml.txt",
    "Dockerfile": "Dockerfile.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
    ".dockerignore": "dockerignore.txt",
}


def start(folder: Path, model: str) -> None:
    """Write the files. Existing files are never changed."""
    there = [path for path in FILES if (folder / path).exists()]
    if there:
        fail(f"{folder} already contains {', '.join(there)}; choose another folder")
    provider = PROVIDERS.get(model.partition(":")[0])
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "my-agents"
    words = {
        "name": name,
        "model": model,
        "extra": (provider.extra if provider else None) or "anthropic",
        "key": provider.keys[0] if provider and provider.keys else "OUTLAST_MODEL",
    }
    for path, source in FILES.items():
        text = resources.files("outlast.cli.project").joinpath(source).read_text("utf-8")
        for word, value in words.items():
            text = text.replace(f"{{{{{word}}}}}", value)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
        console().print(f"  {folder / path}", style="dim", markup=False)
    console().print(f"Next: cd {folder} && outlast dev", markup=False)
    for problem in problems_of(model):
        console().print(problem, style="yellow", markup=False)
