"""A searchable block from a folder of documents."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from block_agents import lone, of
from hypothesis import given
from hypothesis import strategies as st

from outlast.session.providers import folder, regular_files
from outlast.session.providers.directory import DirectoryProvider
from outlast.session.providers.ranking import PASSAGE, Document, Index, passages, words


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    path = tmp_path / "docs"
    (path / "birds").mkdir(parents=True)
    (path / "birds" / "owls.md").write_text("# Owls\n\nOwls fly at night. An owl hears well.")
    (path / "cows.md").write_text("Cows do not fly.")
    (path / "notes.txt").write_text("Owls in another format.")
    return path


async def found(provider: DirectoryProvider, query: str) -> list[str]:
    return [key for key, _ in await provider.search(query)]


async def test_the_best_passages_come_first(docs: Path) -> None:
    provider = DirectoryProvider(docs)
    assert await found(provider, "owls fly at NIGHT") == ["birds/owls.md", "cows.md"]
    assert await found(provider, "cows") == ["cows.md"]
    assert await found(provider, "zebra") == []
    assert await found(DirectoryProvider(docs, "*.txt"), "owls") == ["notes.txt"]


async def test_the_prompt_names_the_documents(docs: Path) -> None:
    block = await lone(of("docs", DirectoryProvider(docs))).get("docs")
    assert block.content == "2 documents: birds/owls.md, cows.md"
    for n in range(40):
        (docs / f"x{n:02}.md").write_text("x")
    assert (await DirectoryProvider(docs).get()).endswith("x27.md and 12 more")
    assert await DirectoryProvider(docs, "*.pdf").get() == "No documents."


async def test_changes_are_found_and_only_they_are_read(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def read_file(path: Path, most: int) -> bytes:
        read.append(path.name)
        return regular_files.read_file(path, most)

    monkeypatch.setattr(folder, "read_file", read_file)
    provider = DirectoryProvider(docs)
    assert await found(provider, "zebra") == []
    assert await found(provider, "night") == ["birds/owls.md"]
    assert sorted(read) == ["cows.md", "owls.md"]
    (docs / "zebra.md").write_text("A zebra has stripes.")
    (docs / "cows.md").write_text("Cows sleep at night, too.")
    (docs / "birds" / "owls.md").unlink()
    assert await found(provider, "night") == ["cows.md"]
    assert await found(provider, "zebra") == ["zebra.md"]
    assert sorted(read[2:]) == ["cows.md", "zebra.md"]


async def test_a_folder_that_disappears_is_an_error_until_it_is_back(docs: Path) -> None:
    blocks = lone(of("docs", DirectoryProvider(docs)))
    assert (await blocks.get("docs")).error is None
    shutil.move(docs, docs.with_name("away"))
    assert (await blocks.get("docs")).error == "no such folder"
    with pytest.raises(FileNotFoundError):
        await blocks["docs"].search("owls")
    shutil.move(docs.with_name("away"), docs)
    assert "birds/owls.md" in await blocks["docs"].search("owls")


async def test_links_that_lead_out_are_ignored(docs: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.md").write_text("The secret key.")
    (docs / "file.md").symlink_to(secret / "key.md")
    (docs / "folder").symlink_to(secret)
    (docs / "loop.md").symlink_to(docs / "loop.md")
    (docs / "nowhere.md").symlink_to(tmp_path / "nowhere")
    (docs / "inside.md").symlink_to(docs / "cows.md")
    assert await found(DirectoryProvider(docs), "secret") == []
    assert await DirectoryProvider(docs).get() == "3 documents: birds/owls.md, cows.md, inside.md"


async def test_binary_files_pipes_and_folders_are_ignored(docs: Path) -> None:
    (docs / "image.md").write_bytes(b"\x89PNG\0owls")
    (docs / "latin.md").write_bytes("Käuze owls".encode("latin-1"))
    (docs / "folder.md").mkdir()
    os.mkfifo(docs / "pipe.md")
    assert sorted(await found(DirectoryProvider(docs), "owls")) == ["birds/owls.md", "latin.md"]


async def test_sizes_are_bounded(
    docs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folder, "MAX_FILE_BYTES", 10)
    monkeypatch.setattr(folder, "MAX_BYTES", 15)
    provider = DirectoryProvider(docs)
    assert await found(provider, "night") == []
    assert await found(provider, "cows") == []
    assert await provider.get() == "1 document: birds/owls.md"
    (record,) = caplog.records
    assert "1 files are left out" in record.getMessage()
    monkeypatch.setattr(folder, "MAX_BYTES", 1000)
    monkeypatch.setattr(folder, "MAX_FILES", 1)
    assert await provider.get() == "1 document: birds/owls.md"


# --- ranking -------------------------------------------------------------------------------------


def test_words_of_languages_without_spaces_are_found() -> None:
    index = Index([Document("a", "东京是日本的首都"), Document("b", "Straße")])
    assert index.search("日本", 10)[0][0] == "a"
    assert index.search("STRASSE", 10)[0][0] == "b"
    assert list(words("東")) == ["東"]


def test_passages_are_cut_between_paragraphs_and_never_long() -> None:
    text = "\n\n".join(["a" * 1000, "b" * 1000, "c" * 10_000])
    found = list(passages(text))
    assert found[:2] == ["a" * 1000, "b" * 1000]
    assert max(map(len, found)) <= 2 * PASSAGE
    assert "".join(found) == text.replace("\n", "")


def test_a_passage_with_more_of_the_words_is_better_than_one_with_many_of_one() -> None:
    long = "owls fly " + " ".join(f"word{n}" for n in range(150))
    common = [Document(f"c{n}", "fly") for n in range(20)]
    index = Index([Document("a", "owls " * 20), Document("b", long), *common])
    assert [key for key, _ in index.search("owls fly", 2)] == ["b", "a"]
    assert [key for key, _ in index.search("owls fly", 1)] == ["b"]


@given(st.text(), st.text())
def test_no_text_and_no_query_breaks_the_index(text: str, query: str) -> None:
    found = Index([Document("k", text)]).search(query, 10)
    assert bool(found) <= bool(set(words(query)) & set(words(f"k {text}")))
    assert "".join("".join(passages(text)).split()) == "".join(text.split())
