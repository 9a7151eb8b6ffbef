"""Skills as a loadable block: the `SKILL.md` files of a folder or an object store."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from outlast.session.providers.folder import Folder, TextFile
from outlast.session.providers.front_matter import Skill, parsed_skill
from outlast.session.providers.object_store import ObjectReader, ObjectStore
from outlast.session.providers.regular_files import text_of
from outlast.session.providers.thread import OneThread

logger = logging.getLogger("outlast.session")

FILE = "SKILL.md"
MAX_SKILLS = 500


class _Source(Protocol):
    async def read(self) -> dict[str, Skill]:
        """Return the skills by the paths of their folders, in order."""
        ...


class SkillProvider:
    """A loadable block of skills: each is a folder with a `SKILL.md`.

    ```python
    from pathlib import Path
    from outlast.session.providers.skills import SkillProvider

    Path("skills/greet").mkdir(parents=True)
    Path("skills/greet/SKILL.md").write_text("---\\nname: greet\\ndescription: How to greet.\\n---\\nBow.")
    skills = SkillProvider("skills")
    assert await skills.get() == {"greet": "How to greet."}
    assert await skills.load("greet") == "Bow."
    ```

    Instead of a folder, it takes an object store: any object with `list(prefix)` and `get(key)`. A skill is
    loaded by the `name` in its front matter, or by the path of its folder if it has none.
    """

    def __init__(self, skills: str | Path | ObjectStore, *, prefix: str = "") -> None:
        self._source: _Source
        if isinstance(skills, str | Path):
            self._source = _FolderSource(Path(skills, prefix) if prefix else Path(skills))
        elif callable(getattr(skills, "list", None)) and callable(getattr(skills, "get", None)):
            self._source = _ObjectSource(ObjectReader(skills), prefix)
        else:
            raise TypeError(
                "skills must be a folder, or an object store with list(prefix) and get(key),"
                f" got {skills!r}"
            )
        self._problems: frozenset[str] = frozenset()

    async def get(self) -> dict[str, str | None]:
        """Return the names of the skills with their descriptions."""
        skills = await self._read()
        return {name: skill.description for name, skill in skills.items()}

    async def load(self, key: str) -> str | None:
        """Return the text of a skill; None if there is none of this name."""
        skill = (await self._read()).get(key)
        return None if skill is None else skill.body

    async def _read(self) -> dict[str, Skill]:
        found = await self._source.read()
        problems = frozenset(
            f"{path}: {each.problem}" for path, each in found.items() if each.problem
        )
        for problem in sorted(problems - self._problems):
            logger.warning("the skill %s", problem)
        self._problems = problems
        return named_skills(found.items())


def named_skills(found: Iterable[tuple[str, Skill]]) -> dict[str, Skill]:
    """Return skills by name. A second one of a name, or one without, has the path of its folder as name."""
    named: dict[str, Skill] = {}
    for path, skill in found:
        name = skill.name if skill.name and skill.name not in named else path
        named.setdefault(name, skill)
    return named


class _FolderSource:
    def __init__(self, path: Path) -> None:
        self._folder = Folder(path, f"**/{FILE}")
        self._thread = OneThread()
        self._known: dict[str, tuple[TextFile, Skill]] = {}  # by the path of the file

    async def read(self) -> dict[str, Skill]:
        return await self._thread.run(self._read)

    def _read(self) -> dict[str, Skill]:
        files = list(self._folder.read().values())[:MAX_SKILLS]
        self._known = {file.key: (file, self._skill(file)) for file in files}
        return {_folder_of(key): skill for key, (_, skill) in self._known.items()}

    def _skill(self, file: TextFile) -> Skill:
        known = self._known.get(file.key)
        return known[1] if known and known[0] is file else parsed_skill(file.text)


class _ObjectSource:
    def __init__(self, reader: ObjectReader, prefix: str) -> None:
        self._reader = reader
        self._prefix = prefix
        self._known: dict[str, tuple[str, Skill]] = {}  # by key: the stamp that it was read with

    async def read(self) -> dict[str, Skill]:
        listed = await self._reader.list(self._prefix)
        wanted = [each for each in listed if each.key.rpartition("/")[2] == FILE][:MAX_SKILLS]
        skills = {}
        for key, stamp in wanted:
            skill = await self._skill(key, stamp)
            if skill is not None:
                skills[_folder_of(key.removeprefix(self._prefix).lstrip("/"))] = skill
        self._known = {key: self._known[key] for key, _ in wanted if key in self._known}
        return skills

    async def _skill(self, key: str, stamp: str | None) -> Skill | None:
        known = self._known.get(key)
        if known is not None and known[0] == stamp:
            return known[1]
        text = text_of(await self._reader.get(key))
        if text is None:
            return None
        skill = parsed_skill(text)
        if stamp is not None:
            self._known[key] = (stamp, skill)
        return skill


def _folder_of(key: str) -> str:
    return key.removesuffix(FILE).strip("/") or FILE
