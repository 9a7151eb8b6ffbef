"""For the reference: the comment behind an attribute is its documentation."""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Docstring, Extension

COMMENT = re.compile(r"  # (.+)$")


class Comments(Extension):
    """`frame: int = 4096  # of one WebSocket frame` documents `frame`."""

    def on_attribute(self, *, attr: Attribute, **_: Any) -> None:
        if attr.docstring is not None or attr.is_private or not attr.lines:
            return
        found = COMMENT.search(attr.lines[-1])
        if found is not None:
            text = found[1][0].upper() + found[1][1:]
            attr.docstring = Docstring(text, lineno=attr.lineno, parent=attr)
