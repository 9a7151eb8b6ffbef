"""Skills of a folder or an object store as a loadable block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from block_agents import lone, of
from hypothesis import given
from hypothesis import strategies as st

from outlast.session.providers.front_matter import parsed_skill
from outlast.session.providers.skills import SkillProvider, named_skills

GREET = "---\nname: greet\ndescription: How to greet.\n---\n\nBow.\n"
SKILLS = {"skills/greet/SKILL.md": GREET, "skills/a/b/SKILL.md": "No front matter."}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "skills"


async def test_skills_of_a_folder_are_listed_and_loaded(tmp_path: Path) -> None:
    block = lone(of("skills", SkillProvider(write(tmp_path, SKILLS))))["skills"]
    shown = await block.read()
    assert (shown.kind, shown.keys) == ("loadable", ("a/b", "greet"))
    assert shown.content == "- a/b\n- greet: How to greet."
    assert await block.load("greet") == "Bow.\n"
    assert await block.load("a/b") == "No front matter."
    assert await block.load("zebra") is None


async def test_changes_are_seen(tmp_path: Path) -> None:
    provider = SkillProvider(tmp_path, prefix="skills/")
    write(tmp_path, SKILLS)
    assert await provider.load("greet") == "Bow.\n"
    write(tmp_path, {"skills/greet/SKILL.md": "---\nname: wave\n---\nWave with both hands."})
    assert await provider.get() == {"a/b": None, "wave": None}
    assert await provider.load("wave") == "Wave with both hands."


@pytest.mark.parametrize(
    "key", ["../../etc/passwd", "/etc/passwd", "..", "greet/../greet", "link", "secret", "greet/"]
)
async def test_no_key_leads_out_of_the_folder(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, SKILLS)
    write(tmp_path, {"outside/SKILL.md": "---\nname: secret\n---\nSecret.", "etc/passwd": "root"})
    (path / "link").symlink_to(tmp_path / "outside")
    (path / "file").mkdir()
    (path / "file" / "SKILL.md").symlink_to(tmp_path / "outside" / "SKILL.md")
    assert await SkillProvider(path).load(key) is None


async def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    block = await lone(of("skills", SkillProvider(tmp_path / "no"))).get("skills")
    assert block.error == "no such folder"


def test_only_folders_and_object_stores_have_skills() -> None:
    with pytest.raises(TypeError, match="skills must be a folder, or an object store with list"):
        SkillProvider(3)  # type: ignore[arg-type]


# --- object stores -------------------------------------------------------------------------------


class Plain:
    """The simplest object store: keys and bytes. Its methods wait, so they must not run on the loop."""

    def __init__(self, objects: dict[str, str] = SKILLS) -> None:
        self.objects = objects
        self.got: list[str] = []

    def list(self, prefix: str) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        return [key for key in self.objects if key.startswith(prefix)]

    def get(self, key: str) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        self.got.append(key)
        return self.objects[key].encode()


class Result:
    """An object as `obstore` returns it: not bytes, but something with a buffer."""

    def __init__(self, content: str) -> None:
        self._content = content

    def bytes(self) -> memoryview:
        return memoryview(self._content.encode())


class LikeObstore(Plain):
    """`list` yields lists of dicts, and can be iterated in both ways; `get` returns an object."""

    def list(self, prefix: str) -> Any:
        metas = [
            {"path": key, "e_tag": str(hash(self.objects[key])), "size": 1}
            for key in super().list(prefix)
        ]

        class Stream:
            def __iter__(self) -> Iterator[Any]:
                return iter([metas[:1], metas[1:]])

            def __aiter__(self) -> AsyncIterator[Any]:
                raise AssertionError("its async API is not safe to use")

        return Stream()

    def get(self, key: str) -> Result:
        return Result(super().get(key).decode())


class Async(Plain):
    async def list(self, prefix: str) -> Any:
        return [key for key in self.objects if key.startswith(prefix)]

    async def get(self, key: str) -> Any:
        await asyncio.sleep(0)
        return self.objects[key]


class AsyncStream(Async):
    async def list(self, prefix: str) -> Any:
        for key in self.objects:
            if key.startswith(prefix):
                yield key

    async def get(self, key: str) -> Any:
        class Body:
            async def read(inner) -> bytes:
                return self.objects[key].encode()

        return Body()


class ReturnsAwaitables(Plain):
    def list(self, prefix: str) -> Any:
        return Async.list(self, prefix)  # type: ignore[arg-type]

    def get(self, key: str) -> Any:
        return Async.get(self, key)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Plain, LikeObstore, Async, AsyncStream, ReturnsAwaitables])
async def test_skills_of_an_object_store(kind: type[Plain]) -> None:
    provider = SkillProvider(kind(), prefix="skills/")
    assert await provider.get() == {"a/b": None, "greet": "How to greet."}
    assert await provider.load("greet") == "Bow.\n"
    assert await provider.load("../greet") is None


async def test_objects_that_have_not_changed_are_read_once() -> None:
    store = LikeObstore(dict(SKILLS))
    provider = SkillProvider(store, prefix="skills/")
    await provider.get()
    store.objects["skills/greet/SKILL.md"] = GREET.replace("Bow", "Wave")
    assert await provider.load("greet") == "Wave.\n"
    assert sorted(store.got) == ["skills/a/b/SKILL.md", *["skills/greet/SKILL.md"] * 2]


@pytest.mark.parametrize("listing", [3, "text", [3], None, {"a": 1}])
async def test_a_store_that_lists_nonsense_is_an_error(listing: Any) -> None:
    class Wrong(Async):
        async def list(self, prefix: str) -> Any:
            return listing

    block = await lone(of("skills", SkillProvider(Wrong()))).get("skills")
    assert block.error is not None
    assert "list() of the object store must return keys" in block.error


# --- front matter --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "description", "body"),
    [
        (GREET, "greet", "How to greet.", "Bow.\n"),
        ("\ufeff---\r\nname: 'a: b'\r\n---\r\nBody", "a: b", None, "Body"),
        ("---\nname: x\ndescription: >\n  one\n  two\n---\n", "x", "one two", ""),
        ("---\n---\nBody", None, None, "Body"),
        ("---\nname: [a]\ndescription: {b: c}\n---\nBody", None, None, "Body"),
        ("---\nname: 3\ndescription: true\n---\nBody", "3", None, "Body"),
        ("---\nname: x\n", None, None, "---\nname: x\n"),
        ("", None, None, ""),
    ],
)
def test_front_matter(text: str, name: str | None, description: str | None, body: str) -> None:
    skill = parsed_skill(text)
    assert (skill.name, skill.description, skill.body) == (name, description, body)
    assert skill.problem is None


@pytest.mark.parametrize(
    "yaml",
    [
        "a: [",
        "- a",
        "!!python/object/apply:builtins.dict\nkwds: {name: x}",
        "[" * 5000,
        "a: &a [*a]\n*a",
    ],
)
def test_broken_front_matter_is_a_problem_and_not_a_crash(yaml: str) -> None:
    skill = parsed_skill(f"---\n{yaml}\n---\nBody")
    assert (skill.name, skill.body) == (None, "Body")
    assert skill.problem is not None
    assert skill.problem.startswith("front matter must be")


async def test_broken_front_matter_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    provider = SkillProvider(write(tmp_path, {"skills/x/SKILL.md": "---\n- a\n---\nBody"}))
    for _ in range(2):
        assert await provider.get() == {"x": None}
    (record,) = caplog.records
    assert record.getMessage() == "the skill x: front matter must be a mapping, got list"


def test_a_second_skill_of_a_name_has_the_path_of_its_folder() -> None:
    one, two = parsed_skill(GREET), parsed_skill(GREET.replace("Bow", "Wave"))
    assert named_skills([("a", one), ("b", two)]) == {"greet": one, "b": two}


@given(st.text(), st.text())
def test_any_text_is_a_skill(front: str, body: str) -> None:
    skill = parsed_skill(f"---\n{front}\n---\n{body}")
    assert skill.name is None or len(skill.name) <= 64
    assert skill.body is not None
