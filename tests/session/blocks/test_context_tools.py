"""The model's tools for context blocks."""

from __future__ import annotations

import asyncio
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pytest
from block_agents import RECEIPTS, ROWS, lone, of, outputs, remembering
from hypothesis import given
from hypothesis import strategies as st

from outlast.chat.tools.declare import spec_of
from outlast.core import json
from outlast.session.blocks.keys import MAX_SLUG, entry_key, slug
from outlast.session.blocks.stored import StoredDocuments
from outlast.session.blocks.tools import ContextTools
from outlast.session.providers.directory import DirectoryProvider
from outlast.session.providers.file import FileProvider
from outlast.session.providers.skills import SkillProvider
from outlast.testing import ScriptedModel, Step
from support import World


def set_context(label: str = "memory", content: Any = "Owls fly.", **more: Any) -> Step:
    return Step.calls("set_context", label=label, content=content, **more)


class Shelf:
    """Searchable, and takes entries."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def search(self, query: str) -> list[tuple[str, str]]:
        return [(key, text) for key, text in self.entries.items() if query in text]

    def set(self, key: str, content: str) -> None:
        self.entries[key] = content


class Both(Shelf):
    """Loadable, too."""

    def load(self, key: str) -> str | None:
        return self.entries.get(key)

    def set(self, key: str, content: str, description: str | None = None) -> None:
        super().set(key, content)


# --- what is offered -----------------------------------------------------------------------------


def schemas(*blocks: Any) -> dict[str, Any]:
    tools = ContextTools(lone(*blocks), None).offered()  # type: ignore[arg-type]
    return {tool.name: tool.function_schema.json_schema for tool in tools}


def test_only_what_a_block_supports_is_offered() -> None:
    assert schemas() == schemas(of("rules", "Be kind.")) == {}
    file = of("notes", FileProvider("x", writable=True))
    (found,) = schemas(file, of("rules", "Be kind.")).values()
    assert found["properties"]["label"] == {"type": "string", "enum": ["notes"]}
    assert sorted(found["properties"]) == ["action", "content", "label"]
    assert found["required"] == ["label", "content"]
    assert list(schemas(of("docs", DirectoryProvider("x")))) == ["search_context"]
    assert list(schemas(of("skills", SkillProvider("x")))) == ["load_context", "unload_context"]


def test_each_tool_has_the_labels_that_it_works_with() -> None:
    found = schemas(of("notes", FileProvider("x", writable=True)), of("shelf", Shelf()))
    assert found["set_context"]["properties"]["label"]["enum"] == ["notes", "shelf"]
    assert found["search_context"]["properties"]["label"]["enum"] == ["shelf"]
    assert {"title", "description"} <= found["set_context"]["properties"].keys()


def test_a_second_execution_of_each_is_harmless() -> None:
    offered = ContextTools(lone(of("shelf", Both())), None).offered()  # type: ignore[arg-type]
    effects = {tool.name: spec_of(tool.function_schema.function).effect for tool in offered}
    assert effects == {
        "set_context": "idempotent",
        "load_context": "read",
        "unload_context": "idempotent",
        "search_context": "read",
    }


async def test_the_model_is_offered_them(sqlite_world: World) -> None:
    agent = remembering("Hello.", blocks=[of("memory", None), of("docs", StoredDocuments())])
    host = await sqlite_world.host(agent)
    await host.get(agent, "r").save_messages("Hi")
    (request,) = agent.model.requests
    assert sorted(request.tools) == ["load_context", "set_context", "unload_context"]


# --- writing -------------------------------------------------------------------------------------


async def test_the_model_writes_and_is_told_the_usage(world: World) -> None:
    agent = remembering(
        set_context(content="x" * 100), set_context(content="y" * 14, action="append"), "Done."
    )
    host = await world.host(agent)
    assert await outputs(host, agent) == [
        "Written to memory. Usage: 50% (25 of 50 tokens).",
        "Written to memory. Usage: 58% (29 of 50 tokens).",
    ]
    assert await host.store.fetch(ROWS) == [("memory", "", "x" * 100 + "\n" + "y" * 14, None)]
    scopes = [(scope, json.decode(value)[:7]) for scope, value in await host.store.fetch(RECEIPTS)]
    assert scopes == [("session:context", "Written")] * 2


async def test_the_next_prompt_has_it(world: World) -> None:
    agent = remembering(set_context(), "Done.")
    host = await world.host(agent)
    await outputs(host, agent)
    agent.model = ScriptedModel("Hello.")
    host = await world.next_life()
    await host.get(agent, "r").save_messages("Hi")
    (request,) = agent.model.requests
    assert "MEMORY (Learned facts) [6% — 3/50 tokens] [writable]" in request.instructions
    assert "Owls fly." in request.instructions


async def test_calls_of_one_step_do_not_miss_each_other(world: World) -> None:
    calls = [
        Step.calls("set_context", label="memory", content=f"{n}", action="append") for n in range(8)
    ]
    agent = remembering(reduce(add, calls), "Done.")
    host = await world.host(agent)
    assert len(await outputs(host, agent)) == 8
    content = (await host.get(agent, "r").read("memory")).content
    assert sorted(content.splitlines()) == [str(n) for n in range(8)]


class Slow:
    """Outside the store; between a read and a write, others may run."""

    content = ""

    async def get(self) -> str:
        found = self.content
        await asyncio.sleep(0)
        return found

    async def set(self, content: str) -> None:
        await asyncio.sleep(0)
        self.content = content


async def test_nor_do_those_to_a_provider_that_is_slow(sqlite_world: World) -> None:
    slow = Slow()
    calls = [set_context("notes", f"{n}", action="append") for n in range(8)]
    agent = remembering(reduce(add, calls), "Done.", blocks=[of("notes", slow)])
    host = await sqlite_world.host(agent)
    assert len(await outputs(host, agent)) == 8
    assert sorted(slow.content.splitlines()) == [str(n) for n in range(8)]


async def test_a_full_block_is_told_as_text_and_nothing_is_written(world: World) -> None:
    agent = remembering(set_context(content="x" * 201), "Done.")
    host = await world.host(agent)
    assert await outputs(host, agent) == ["Error: memory would use 51 of 50 tokens; shorten it"]
    assert await host.store.fetch(ROWS) == await host.store.fetch(RECEIPTS) == []


async def test_entries_have_the_key_of_their_title(world: World) -> None:
    docs = of("docs", StoredDocuments())
    agent = remembering(
        set_context("docs", "Bow.", title="How to greet!", description="About\ngreeting"),
        set_context("docs", "Wave.", title="How to greet"),
        set_context("docs", "Both.", title="how to GREET", action="append", description="Greeting"),
        set_context("docs", "Some fact"),
        Step.calls("load_context", label="docs", key="how-to-greet"),
        Step.calls("load_context", label="docs", key="zebra"),
        "Done.",
        blocks=[docs],
    )
    host = await world.host(agent)
    *first, fourth, loaded, missing = await outputs(host, agent)
    assert first == ['Indexed "how-to-greet" in docs.'] * 3
    assert fourth.startswith('Indexed "some-fact-')
    assert loaded == "Wave.\nBoth."
    key = fourth.split('"')[1]
    assert missing == f'Error: docs has no entry "zebra". It has: how-to-greet, {key}.'
    assert (await host.get(agent, "r").read("docs")).content == f"- how-to-greet: Greeting\n- {key}"


async def test_a_searchable_block_is_searched_and_written(sqlite_world: World) -> None:
    shelf = Shelf()
    agent = remembering(
        set_context("shelf", "Owls fly.", title="Owls"),
        set_context("shelf", "Cows do not.", title="Cows", action="append"),
        Step.calls("search_context", label="shelf", query="fly"),
        Step.calls("search_context", label="shelf", query="zebra"),
        Step.calls("search_context", label="shelf", query=" "),
        "Done.",
        blocks=[of("shelf", shelf)],
    )
    host = await sqlite_world.host(agent)
    assert await outputs(host, agent) == [
        'Indexed "owls" in shelf.',
        "Error: shelf cannot append; replace the whole entry",
        "[owls]\nOwls fly.",
        "Nothing in shelf matches.",
        "Error: query must not be blank",
    ]


async def test_a_file_is_written(sqlite_world: World, tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    agent = remembering(
        set_context("notes", "one"),
        set_context("notes", "two", action="append"),
        "Done.",
        blocks=[of("notes", FileProvider(path, writable=True))],
    )
    host = await sqlite_world.host(agent)
    assert await outputs(host, agent) == [
        "Written to notes (2 tokens).",
        "Written to notes (3 tokens).",
    ]
    assert path.read_text() == "one\ntwo"


async def test_content_that_a_store_rejects_is_repaired(world: World) -> None:
    agent = remembering(set_context(content="a\0b"), "Done.")
    host = await world.host(agent)
    assert await outputs(host, agent) == ["Written to memory. Usage: 4% (2 of 50 tokens)."]
    assert (await host.get(agent, "r").read("memory")).content == "a\ufffdb"


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (set_context("rules"), "label must be one of 'memory', 'docs', got 'rules'"),
        (set_context("me\nmory"), r"label must be one of 'memory', 'docs', got 'me\nmory'"),
        (set_context(content=3), "content must be a string, got 3"),
        (set_context(action="delete"), "action must be replace or append, got 'delete'"),
        (set_context("docs", title=["x"]), "title must be a string, got ['x']"),
        (Step.calls("set_context"), "label must be one of 'memory', 'docs', got None"),
        (
            Step.calls("set_context", label=["memory"]),
            "label must be one of 'memory', 'docs', got [",
        ),
        (Step.calls("load_context", label="docs"), "key must be a str, got None"),
        (Step.calls("load_context", label="docs", key="a\0"), "key must not contain NUL"),
        (
            Step.calls("load_context", label="docs", key="k" * 2000),
            "key must be at most 1,000 bytes",
        ),
        (Step.calls("load_context", label="docs", key="../../etc/passwd"), "docs has no entry"),
        (Step.calls("load_context", label="memory", key="a"), "label must be one of 'docs'"),
        (Step.calls("unload_context", label="docs", key=""), "key must not be blank"),
    ],
)
async def test_wrong_arguments_are_told_as_text(
    sqlite_world: World, call: Step, error: str
) -> None:
    blocks = [of("memory", None), of("rules", "Be kind."), of("docs", StoredDocuments())]
    agent = remembering(call, "Done.", blocks=blocks)
    host = await sqlite_world.host(agent)
    (output,) = await outputs(host, agent)
    assert output.startswith(f"Error: {error}")
    assert len(output) < 300


class Broken:
    """Everything fails, one way or another."""

    async def load(self, key: str) -> Any:
        if key == "hang":
            await asyncio.get_running_loop().create_future()
        if key == "huge":
            return "x" * 10_000_000
        if key == "wrong":
            return 3
        raise KeyError(key)

    def search(self, query: str) -> Any:
        return {"wrong": 3, "triples": [("a", "b", "c")], "text": "as it is"}[query]

    def set(self, key: str, content: str, description: str | None = None) -> None:
        raise PermissionError(13, "Permission denied", "/etc/passwd")


@pytest.mark.virtual_time
async def test_a_provider_that_fails_is_told_as_text(sqlite_world: World) -> None:
    def load(key: str) -> Step:
        return Step.calls("load_context", label="x", key=key)

    def search(query: str) -> Step:
        return Step.calls("search_context", label="x", query=query)

    agent = remembering(
        *map(load, ("hang", "huge", "wrong", "none")),
        *map(search, ("wrong", "triples", "text")),
        set_context("x"),
        "Done.",
        blocks=[of("x", Broken())],
    )
    host = await sqlite_world.host(agent)
    hang, huge, wrong, none, *searches, denied = await outputs(host, agent)
    assert hang == "Error: TimeoutError: no answer within 30 s"
    assert huge.endswith("[9,800,000 more characters are not shown]")
    assert wrong == "Error: TypeError: load() of the provider of 'x' must return a str, got int"
    assert none == "Error: KeyError: 'none'"
    assert searches == [
        "Error: TypeError: search() of the provider of 'x' must return a str, got int",
        "Error: TypeError: search() of the provider of 'x' must return (key, content) pairs, got tuple",
        "as it is",
    ]
    assert denied == "Error: Permission denied"


# --- unloading -----------------------------------------------------------------------------------


async def test_unloading_is_one_commit_with_its_receipt(world: World) -> None:
    unload = Step.calls("unload_context", label="docs", key="a")
    again = Step.calls("unload_context", label="docs", key="b")
    agent = remembering(unload, again, "Done.", blocks=[of("docs", StoredDocuments())])
    agent.loaded = {("docs", "a")}
    host = await world.host(agent)
    assert await outputs(host, agent) == [
        'Unloaded "a" of docs.',
        'Error: "b" of docs is not loaded',
    ]
    assert [scope for scope, _ in await host.store.fetch(RECEIPTS)] == ["session:context"]


# --- blocks that come and go ---------------------------------------------------------------------


async def test_blocks_are_added_and_removed() -> None:
    blocks = lone(of("rules", "Be kind."))
    tools = ContextTools(blocks, None)  # type: ignore[arg-type]
    assert tools.offered() == []
    added = await blocks.add(of("shelf", Shelf()))
    assert added.kind == "searchable"
    assert {tool.name for tool in tools.offered()} == {"set_context", "search_context"}
    with pytest.raises(ValueError, match="two context blocks 'shelf'"):
        await blocks.add(of("shelf", "text"))
    assert blocks.remove("shelf")
    assert not blocks.remove("shelf")
    assert tools.offered() == []
    assert [each.label for each in blocks.settings] == ["rules"]


# --- keys ----------------------------------------------------------------------------------------


def test_a_slug_has_words_and_hyphens() -> None:
    assert slug("  How to – greet?! ") == "how-to-greet"
    assert slug("Grüße_an/alle") == "grüsse-an-alle"
    assert slug("!?") == ""
    assert slug("x" * 100) == "x" * MAX_SLUG
    assert slug("../../etc/passwd") == "etc-passwd"


@given(st.text(), st.none() | st.text())
def test_a_key_is_short_never_empty_and_the_same_for_the_same(
    content: str, title: str | None
) -> None:
    key = entry_key(content, title)
    assert 1 <= len(key) <= MAX_SLUG
    assert key == entry_key(content, title)
    assert not key.startswith("-")
    assert "/" not in key


def test_without_a_title_other_content_has_another_key() -> None:
    assert entry_key("Owls fly.", None) != entry_key("Owls fly!", None) != entry_key("Owls", " ")
    assert entry_key("Owls fly.", None) == entry_key("Owls fly.", "?!")
