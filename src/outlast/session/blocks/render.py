"""Context blocks as text of a system prompt. Pure: the same blocks give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from outlast.session.block import ContextBlock
from outlast.session.providers.excerpts import in_one_line

RULER = "═" * 46
_RULED = re.compile("═{8,}")


def rendered(blocks: Iterable[ContextBlock], loaded: Collection[tuple[str, str]] = ()) -> str:
    """Return the blocks as the model sees them. `loaded`: label and key of the entries it has loaded.

    ```python
    from outlast.session.block import ContextBlock
    from outlast.session.blocks.render import rendered

    memory = ContextBlock("memory", "writable", "Owls.", "Learned facts", max_tokens=20, tokens=2)
    assert "MEMORY (Learned facts) [10% — 2/20 tokens] [writable]" in rendered([memory])
    ```
    """
    shown = (_block(each, loaded) for each in blocks)
    return "\n\n".join(text for text in shown if text)


def catalogue(entries: Mapping[str, str | None]) -> str:
    """Return the keys of a loadable block with their descriptions, one a line."""
    return "\n".join(_entry(key, description) for key, description in entries.items())


def _entry(key: str, description: str | None) -> str:
    return f"- {key}: {in_one_line(description)}" if description else f"- {key}"


def _block(block: ContextBlock, loaded: Collection[tuple[str, str]]) -> str:
    if block.error is not None:
        return f"[{block.label} could not be read: {block.error}]"
    keys = sorted(key for label, key in loaded if label == block.label)
    lines = [_unruled(block.content)] if block.content else []
    if block.kind == "loadable" and keys:
        lines.append(f"Loaded: {', '.join(keys)}")
    if not lines and block.kind == "readonly":
        return ""
    return "\n".join([RULER, _header(block), RULER, *lines])


def _unruled(content: str) -> str:
    """Return a content in which nothing looks like the beginning of another block."""
    return _RULED.sub(lambda found: "=" * len(found[0]), content)


def _header(block: ContextBlock) -> str:
    parts = [block.label.upper()]
    if block.description:
        parts.append(f"({in_one_line(block.description)})")
    if block.max_tokens is not None:
        percent = block.tokens * 100 // block.max_tokens
        parts.append(f"[{percent}% — {block.tokens:,}/{block.max_tokens:,} tokens]")
    return " ".join([*parts, f"[{block.kind}]"])
