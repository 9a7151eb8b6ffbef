"""The application's own parts in an answer: `data-<name>`, stored with the message or only shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from outlast.chat.message.encoder import Encoder
from outlast.core import json
from outlast.core.errors import ValueTooLarge
from outlast.core.text import problem_of

MAX_LENGTH = 1024 * 1024  # characters of one part
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def data_chunk(name: str, data: Any, *, id: str | None = None, transient: bool = False) -> str:
    """Return the chunk of a data part; raise if it is invalid."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            "the name of a data part must be 1 to 100 letters, digits, '-', '_' or '.', without the"
            f" prefix 'data-', got {name!r}"
        )
    if id is not None and (problem := problem_of(id)) is not None:
        raise ValueError(f"the id of a data part {problem}")
    json.encode(data, "data")  # raises if it is not JSON
    chunk = Encoder().data(name, data, data_id=id, transient=transient)
    if len(chunk) > MAX_LENGTH:
        raise ValueTooLarge(
            f"the data part {name!r} must have at most {MAX_LENGTH:,} characters, got {len(chunk):,}."
            " Put large data into a file or an object store, and send its address."
        )
    return chunk


class DataWriter:
    """Writes data parts into an answer; hooks get one as `context.writer`."""

    def __init__(self, write: Callable[[str, bool], None]) -> None:
        self._write = write

    def data(self, name: str, data: Any, *, id: str | None = None, transient: bool = False) -> None:
        """Write a part `data-<name>`; see `Think.emit_data`."""
        self._write(data_chunk(name, data, id=id, transient=transient), transient)
