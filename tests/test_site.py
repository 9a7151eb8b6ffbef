"""The documentation is whole: it builds without a complaint, asks nobody else for anything, and is run."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
import yaml

import outlast
from outlast.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
INCLUDE = re.compile(r'--8<-- "([^"]+)"')
COMMAND = re.compile(r"(?:^|[\s/=])outlast ([a-z]+)\b(.*)")
ELSEWHERE = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `script/docs` builds it: a broken link or anchor, or a page without a place, is one."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    complaints = [line for line in built.stderr.splitlines() if not line.startswith("INFO")]
    assert (built.returncode, complaints) == (0, [])
    return folder


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "reference").rglob("*.html"))
    types_only = {
        "FiberStatus", "StopCondition", "ToolCallDecision", "ChatErrorClassification",
        "ChatErrorStage", "SubmissionStatus", "TurnStatus", "ContinuationStyle",
        "ContinuationWay", "EventSeverity", "BareThink", "ContextBlockKind", "WhenChanged",
        "ExhaustedReason", "InterruptionCause", "ModelFailureKind", "RecoveryKind", "ScheduleKind",
        "ToolEffect",
    }  # fmt: skip
    names = set(outlast.__all__) - types_only - {"__version__"}
    missing = {name for name in names if not re.search(rf'id="[\w.]*\.{name}"', pages)}
    assert missing == set()


def test_the_site_asks_nobody_else_for_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    asked = [page.name for page in pages if ELSEWHERE.search(page.read_text())]
    assert asked == []
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert not re.search(r"url\([\"']?https?:", styles)


def test_the_site_can_be_searched(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text())
    titles = {entry["title"] for entry in found["docs"]}
    assert {"Quickstart", "Recovery", "Deploying", "Guarantees and their limits"} <= titles


# --- the walk through the source -----------------------------------------------------------------

WALKED = re.compile(r"\[`([^`]+)`\]\(\.\./(src/outlast/[^)]+)\)")


def defined_in(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    """Every class, function and method of a module, as `Class.method`, and the names that a class sets."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
            yield from defined_in(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield prefix + node.target.id


def test_the_walk_through_the_source_names_what_the_modules_define() -> None:
    walk = (ROOT / "docs" / "source.md").read_text()
    named = WALKED.findall(walk)
    assert len(named) > 50
    for name, path in named:
        file = ROOT / path
        assert file.is_file(), f"docs/source.md links to {path}, which is not there"
        is_module = path.removesuffix("/__init__.py").endswith(name)
        defined = set(defined_in(ast.parse(file.read_text())))
        assert is_module or name in defined, f"{path} does not define {name}"
    unlinked = set(re.findall(r"(?<!\[)`(\w+\._\w+)`", walk)) - {"Think._part_types"}
    known = {name for _, path in named for name in defined_in(ast.parse((ROOT / path).read_text()))}
    assert unlinked <= known


# --- blocks --------------------------------------------------------------------------------------


def blocks() -> Iterator[tuple[str, str, str]]:
    for page in PAGES:
        for found in FENCE.finditer(page.read_text()):
            yield str(page.relative_to(ROOT)), found[1].strip(), found[2]


def test_each_python_block_is_run_here_or_as_an_example() -> None:
    """`python` is run by test_docs.py; with a title it is a file of examples/, which tests/examples run."""
    folders = [ROOT / "tests" / "examples", ROOT / "tests" / "batteries"]
    tested = "".join(test.read_text() for folder in folders for test in folder.glob("*.py"))
    for page, kind, text in blocks():
        if not kind.startswith(("python", "jsx")) or kind == "python":
            continue
        included = INCLUDE.fullmatch(text.strip())
        assert included is not None, f"{page} has a block that nobody runs: {kind}"
        name, _, section = included[1].partition(":")
        file = ROOT / name
        assert kind.endswith(f'title="{name}"'), f"{page}: {kind}"
        assert file.is_file(), f"{page} shows {file}, which is not there"
        assert not section or f"[start:{section}]" in file.read_text(), f"{page}: {included[1]}"
        is_tested = file.stem in tested or file.stem.startswith("test_") or "react" in name
        assert is_tested, f"no test runs {file}"


def test_the_agent_of_the_readme_is_the_one_of_the_quickstart_and_of_the_example() -> None:
    def agent(text: str) -> str:
        found = re.search(r"class Assistant\(Think\):.*?sunny in \{city\}\"", text, re.DOTALL)
        assert found is not None
        lines = [line.split("  #")[0] for line in found[0].splitlines() if line.strip()]
        return "\n".join(line for line in lines if "system_prompt" not in line)

    readme = agent((ROOT / "README.md").read_text())
    assert readme == agent((ROOT / "docs" / "quickstart.md").read_text())
    assert readme == agent((ROOT / "examples" / "minimal.py").read_text())


def commands() -> Iterator[tuple[str, str]]:
    """Every `outlast …` in a block of the docs: of shells, of unit files, of container files."""
    for page, kind, text in blocks():
        if kind.split()[:1] not in (["sh"], ["bash"], ["ini"]):
            continue
        for line in text.splitlines():
            found = COMMAND.search(line.partition(" #")[0])
            if found is not None and not line.lstrip().startswith("pkill"):
                yield page, f"{found[1]}{found[2]}"


def test_commands_that_the_docs_show_exist_with_their_options() -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group) or hasattr(root, "commands")
    seen = set()
    for page, line in commands():
        words = shlex.split(line, comments=True)
        command, names = root, []
        while words and hasattr(command, "commands") and words[0] in command.commands:
            names.append(words[0])
            command = command.commands[words.pop(0)]
        assert names, f"{page}: there is no command for: outlast {line}"
        known = {option for given in command.params for option in given.opts}
        used = {word.split("=")[0] for word in words if word.startswith("-")}
        assert used <= known | {"--json"}, f"{page}: outlast {line}"
        seen.add(names[0])
    assert {"serve", "inspect", "explain", "incidents"} <= seen


def test_scripts_and_programs_that_the_docs_show_are_there() -> None:
    shown = {
        found
        for _, kind, text in blocks()
        if kind.split()[:1] in (["sh"], ["bash"])
        for found in re.findall(r"\b(?:script|examples)/[\w/.]+", text)
    }
    assert {"script/demo", "script/test", "script/torture"} <= shown
    assert {name for name in shown if not (ROOT / name).exists()} == set()


def test_the_files_for_containers_can_be_read_and_start_a_command_that_exists() -> None:
    documents = [
        document
        for page, kind, text in blocks()
        if page == "docs/deploying.md" and kind.startswith("yaml")
        for document in yaml.safe_load_all(text)
    ]
    assert [document.get("kind") for document in documents] == [None, "StatefulSet", "Service"]
    pod = documents[1]["spec"]["template"]["spec"]
    drain = int(pod["containers"][0]["args"][pod["containers"][0]["args"].index("--drain") + 1])
    assert pod["terminationGracePeriodSeconds"] > drain
    assert documents[1]["spec"]["replicas"] == 1
    known = {
        option
        for given in typer.main.get_command(app).commands["serve"].params
        for option in given.opts
    }
    dockerfile = next(text for _, kind, text in blocks() if kind.startswith("dockerfile"))
    for arguments in (pod["containers"][0]["args"], json.loads(dockerfile.partition("CMD ")[2])):
        assert arguments[:2] == ["outlast", "serve"]
        assert {word for word in arguments if word.startswith("--")} <= known
