"""A hook of MkDocs: the site has a page for each module that docs/source.md links to.

In the repository such a link leads to the module itself; on the site, which has no `src/`, to that page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parent.parent
WALK = "source.md"
LINK = re.compile(r"\]\(\.\./src/(outlast/[\w/]+)\.py\)")


def page_of(module: str) -> str:
    """The page of a module, which is given as a path without its ending."""
    return f"source/{module.removesuffix('/__init__')}.md"


def listing(module: str) -> str:
    """The text of that page. Its fence is longer than those in docstrings."""
    code = (ROOT / "src" / f"{module}.py").read_text()
    front = "---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n"
    return f"{front}\n# {module}.py\n\n``````python\n{code}``````\n"


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages."""
    walk = (ROOT / "docs" / WALK).read_text()
    for module in sorted(set(LINK.findall(walk))):
        page = File.generated(
            config, page_of(module), content=listing(module), inclusion=InclusionLevel.NOT_IN_NAV
        )
        files.append(page)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Point the links of the walk at them."""
    if page.file.src_uri != WALK:
        return markdown
    return LINK.sub(lambda found: f"]({page_of(found[1])})", markdown)
