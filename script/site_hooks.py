"""What the site shows that lies outside of docs/: README, CONTRIBUTING and CHANGELOG become its pages.

The files stay readable where they are: their links lead to `docs/…`, those of the docs to `../…`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"\]\(([^)\s]+)\)")
PICTURE = re.compile(
    r"!\[([^\]]*)\]\((images/kill)\.png\)"
)  # there is one for each of light and dark
FENCE = re.compile(r"^([ \t]*```\w+) no-run$")


def destination(link: str, *, is_outside: bool) -> str:
    """Where a link leads on the site: one in a file outside of docs/, or one of a page to such a file.

    ```python
    from site_hooks import destination
    assert destination("docs/tools.md#a-key", is_outside=True) == "tools.md#a-key"
    assert destination("../CONTRIBUTING.md#tests", is_outside=False) == "contributing.md#tests"
    ```
    """
    if is_outside and link.startswith("docs/"):
        return link.removeprefix("docs/")
    if not is_outside and not link.startswith("../"):
        return link
    name, mark, anchor = link.removeprefix("../").partition("#")
    if name in PAGES:
        return f"{PAGES[name]}{mark}{anchor}"
    if name.startswith("examples/"):
        return "examples.md"
    return link


def rewritten(text: str, *, is_outside: bool) -> str:
    return LINK.sub(lambda found: f"]({destination(found[1], is_outside=is_outside)})", text)


def decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("0*.md"))


# --- what MkDocs calls ---------------------------------------------------------------------------


class _Fences(Preprocessor):
    """To a reader an example that cannot run by itself is one like the others."""

    def run(self, lines: list[str]) -> list[str]:
        return [FENCE.sub(r"\1", line) for line in lines]


class _PlainFences(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Fences(md), "outlast-fences", 60)  # before the fences are read


def on_config(config: Any) -> Any:
    config["markdown_extensions"].append(_PlainFences())
    for section in config["nav"]:
        for entry in section.get("Project", ()):
            if isinstance(entry, dict) and "Decisions" in entry:
                entry["Decisions"] += [f"decisions/{page.name}" for page in decisions()]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    for name, page in PAGES.items():
        text = rewritten((ROOT / name).read_text(), is_outside=True)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    if page.file.src_uri not in PAGES.values():
        markdown = rewritten(markdown, is_outside=False)
    if page.file.src_uri == "decisions/README.md":
        titles = [(file, file.read_text().partition("\n")[0].lstrip("# ")) for file in decisions()]
        markdown += "\n" + "".join(f"* [{title}]({file.name})\n" for file, title in titles)
    return PICTURE.sub(r"![\1](\2.png#only-light)![\1](\2-dark.png#only-dark)", markdown)
