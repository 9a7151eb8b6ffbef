"""Settings of context blocks: what is wrong with them is said at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from block_agents import lone, of

from outlast.session.block import BlockSettings
from outlast.session.blocks.stored import StoredDocuments, StoredProvider
from outlast.session.providers.abilities import abilities_of, as_provider
from outlast.session.providers.directory import DirectoryProvider
from outlast.session.providers.file import FileProvider
from outlast.session.providers.skills import SkillProvider


@pytest.mark.parametrize("label", ["memory", "_x", "user-facts", "Gedächtnis", "x" * 64])
def test_a_label_is_like_an_identifier(label: str) -> None:
    assert BlockSettings(label=label).label == label


@pytest.mark.parametrize(
    "label", ["", " ", "1st", "two words", "memory\n", "a\nb", "a]", "x" * 65, "-a", "nul\0"]
)
def test_other_labels_are_refused(label: str) -> None:
    with pytest.raises(ValueError, match="the label of a context block must be a letter or _"):
        BlockSettings(label=label)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label": 3}, "the label of a context block must be a str, got 3"),
        ({"description": 3}, "description of 'm' must be a str, got 3"),
        ({"max_tokens": 0}, "max_tokens of 'm' must be at least 1, got 0"),
        ({"max_tokens": "9"}, "max_tokens of 'm' must be an int, got '9'"),
        ({"max_tokens": True}, "max_tokens of 'm' must be an int, got True"),
        ({"when_changed": "now"}, "when_changed of 'm' must be one of 'refresh', 'remind'"),
    ],
)
def test_wrong_settings_say_what_they_must_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        BlockSettings(**{"label": "m", **settings})


def test_two_blocks_of_one_label_are_refused() -> None:
    with pytest.raises(ValueError, match="two context blocks 'a'; rename one"):
        lone(of("a", "text"), of("a", "other"))


# --- kinds ---------------------------------------------------------------------------------------


class Reads:
    def get(self) -> str:
        return "read"


class Writes(Reads):
    def set(self, content: str) -> None: ...


class Loads:
    def load(self, key: str) -> str | None:
        return None


class LoadsAndSets(Loads):
    def set(self, key: str, content: str, description: str | None = None) -> None: ...


class Searches:
    async def search(self, query: str) -> None: ...


class SearchesAndSets(Searches):
    async def set(self, key: str, content: str) -> None: ...


class Both(LoadsAndSets, Searches): ...


@pytest.mark.parametrize(
    ("provider", "kind", "can"),
    [
        ("a text", "readonly", "get"),
        (lambda: "a text", "readonly", "get"),
        (Reads(), "readonly", "get"),
        (Writes(), "writable", "get set"),
        (Loads(), "loadable", "load"),
        (LoadsAndSets(), "loadable", "load set"),
        (Searches(), "searchable", "search"),
        (SearchesAndSets(), "searchable", "search set"),
        (Both(), "loadable", "load search set"),
        (StoredProvider(), "writable", "append get set"),
        (StoredDocuments(), "loadable", "get load set"),
        (FileProvider("x"), "readonly", "get"),
        (FileProvider("x", writable=True), "writable", "get set"),
        (DirectoryProvider("x"), "searchable", "get search"),
        (SkillProvider("x"), "loadable", "get load"),
    ],
)
def test_what_a_provider_can_do_decides_the_kind(provider: Any, kind: str, can: str) -> None:
    found = abilities_of("docs", as_provider("docs", provider))
    names = ("append", "get", "load", "search", "set")
    assert found.kind == kind
    assert " ".join(name for name in names if getattr(found, f"can_{name}")) == can


class TakesTooMuch:
    def get(self, path: str) -> str:
        return path


class SetsAKey(Reads):
    def set(self, key: str, content: str) -> None: ...


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        (
            object(),
            r"provider of 'docs' must have get\(\), or search\(\), or load\(\), got <object",
        ),
        (3, r"provider of 'docs' must have get\(\), or search\(\), or load\(\), got 3"),
        (Path("notes.md"), r"must have get\(\), or search\(\), or load\(\), got .*notes.md"),
        ({"a": "b"}, r"get\(\) of the provider of 'docs' must take \(\), got {'a': 'b'}"),
        (TakesTooMuch(), r"get\(\) of the provider of 'docs' must take \(\)"),
        (SetsAKey(), r"set\(\) of the provider of 'docs' must take \(content\)"),
        (Reads, "provider of 'docs' must be an object, got the class Reads; call it"),
        (lambda path: path, r"a function as provider of 'docs' must take \(\)"),
    ],
)
def test_a_provider_that_can_do_nothing_is_refused(provider: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        lone(of("docs", provider))


@pytest.mark.parametrize("glob", ["", "/etc/*", "../*.md", "a/../../*.md"])
def test_a_glob_stays_below_its_folder(glob: str) -> None:
    with pytest.raises(ValueError, match="glob must be a pattern below the folder"):
        DirectoryProvider("docs", glob)


def test_a_store_is_needed_for_stored_providers() -> None:
    with pytest.raises(
        RuntimeError, match="StoredProvider has no store yet; pass it to with_context"
    ):
        _ = StoredProvider().rows
