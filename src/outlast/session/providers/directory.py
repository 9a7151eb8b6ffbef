"""A searchable block from a folder of documents."""

from __future__ import annotations

from pathlib import Path

from outlast.session.providers.folder import Folder, TextFile
from outlast.session.providers.ranking import Document, Index
from outlast.session.providers.thread import OneThread

LIMIT = 10  # passages in an answer
NAMED = 30  # documents that the prompt names


class DirectoryProvider:
    """A searchable block: the passages of documents that have the words of a query.

    ```python
    from pathlib import Path
    from outlast.session.providers.directory import DirectoryProvider

    Path("docs").mkdir()
    Path("docs/owls.md").write_text("Owls fly at night.")
    docs = DirectoryProvider("docs")
    assert await docs.get() == "1 document: owls.md"
    assert await docs.search("night") == [("owls.md", "Owls fly at night.")]
    ```

    The next search indexes files that have changed. It ignores binary files, and links that lead out of the
    folder.
    """

    def __init__(self, path: str | Path, glob: str = "**/*.md") -> None:
        self._folder = Folder(path, glob)
        self._thread = OneThread()
        self._documents: dict[str, tuple[TextFile, Document]] = {}
        self._index = Index(())

    async def get(self) -> str:
        """Return how many documents there are, and their names."""
        return await self._thread.run(self._overview)

    async def search(self, query: str) -> list[tuple[str, str]]:
        """Return the best passages, each with the path of its document."""
        return await self._thread.run(self._search, query)

    def _overview(self) -> str:
        names = list(self._folder.read())
        if not names:
            return "No documents."
        counted = "1 document" if len(names) == 1 else f"{len(names):,} documents"
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        return f"{counted}: {', '.join(names[:NAMED])}{more}"

    def _search(self, query: str) -> list[tuple[str, str]]:
        self._refresh()
        return self._index.search(query, LIMIT)

    def _refresh(self) -> None:
        files = self._folder.read()
        if files == {key: file for key, (file, _) in self._documents.items()}:
            return
        documents: dict[str, tuple[TextFile, Document]] = {}
        for key, file in files.items():
            known = self._documents.get(key)
            is_same = known is not None and known[0] is file
            documents[key] = known if known and is_same else (file, Document(key, file.text))
        self._documents = documents
        self._index = Index(document for _, document in documents.values())
