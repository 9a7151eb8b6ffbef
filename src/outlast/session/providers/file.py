"""A block from a file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from outlast.session.block import MAX_CONTENT
from outlast.session.providers.regular_files import read_file, text_of, write_file
from outlast.session.providers.thread import OneThread

MAX_BYTES = 4 * MAX_CONTENT  # a character takes up to four


class FileProvider:
    """A block whose content is a text file. With `writable=True`, the model may write it.

    ```python
    from outlast.session.providers.file import FileProvider

    notes = FileProvider("notes.md", writable=True)
    assert await notes.get() is None  # a writable file need not exist
    await notes.set("Owls fly at night.")
    assert await notes.get() == "Owls fly at night."
    ```

    A write replaces the file at once. It is not part of a commit: a call that is interrupted is made again.
    """

    def __init__(self, path: str | Path, writable: bool = False) -> None:
        self._path = Path(path)
        self._thread = OneThread()
        self.writable = writable

    async def get(self) -> str | None:
        return await self._thread.run(self._read)

    @property
    def set(self) -> Callable[[str], Awaitable[None]] | None:
        """Replaces the content. None if the file is read-only."""
        return self._set if self.writable else None

    async def _set(self, content: str) -> None:
        await self._thread.run(self._write, content)

    def _read(self) -> str | None:
        try:
            content = read_file(self._path.resolve(), MAX_BYTES)
        except FileNotFoundError:
            if self.writable:
                return None
            raise
        text = text_of(content)
        if text is None:
            raise ValueError(f"{self._path.name} must be a text file, got a binary one")
        return text

    def _write(self, content: str) -> None:
        write_file(self._path.resolve(), content)
