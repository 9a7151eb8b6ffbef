"""Boots on whatever is stored: damaged rows, rows of older versions, and very much of it."""

from __future__ import annotations

import asyncio
import logging
import resource
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from chat_rows import prompts_of
from interruptions import SLOW, Told

from outlast import Agent, Session, StoreCorrupt, Think, ToolCall, tool
from outlast.chat.transcript.transcript import WINDOW_BYTES
from outlast.testing import ScriptedModel, Step
from outlast.testing.virtual import VirtualLoop
from support import forever, hosting

pytestmark = [pytest.mark.virtual_time, pytest.mark.invariant("O1")]


class Helper(Agent):
    async def note(self) -> None:
        await self.storage.put("noted", True)


def said(messages: list[Any]) -> Step:
    if prompts_of(messages)[-1] != "work":
        return Step.text("Fine.")
    kinds = [part.part_kind for message in messages for part in message.parts]
    if "tool-return" in kinds:
        return SLOW
    call = Step.call("work", {}, id="w1") + Step.call("look", {}, id="l1")
    return Step.text("Let me see. ") + call


class Full(Think):
    """There is something in each table when it is killed."""

    model = ScriptedModel.answering(said)
    sub_agents = (Helper,)
    initial_state = {"count": 0}

    def configure_session(self, session: Session) -> Session:
        session = session.with_context("memory").with_cached_prompt().with_search()
        return session.on_compaction(lambda messages: "They talked.")

    async def begin(self) -> None:
        await self.storage.put("key", {"a": 1})
        await self.set_state({"count": 1})
        await self.schedule_every(3600, self.tick)
        await self.schedule(7200, self.tick)
        helper = await self.sub_agent(Helper, "h")
        await helper.note()
        await self.start_fiber("wait", self.wait, id="f1", metadata={"m": 1})

    async def storage_and_all(self) -> None:
        """Whatever else can be asked for."""
        await self.list_fibers()
        await self.get_schedules()
        await self.list_incidents()
        await self.list_submissions()
        await self.session.search("work")
        await self.session.get_context_blocks()

    async def wait(self, fiber: Any) -> None:
        await fiber.stash({"at": 1})
        await forever()

    async def on_fiber_recovered(self, fiber: Any) -> None:
        fiber.resume(self.wait)

    async def tick(self) -> None:
        await self.storage.put("tick", True)

    async def before_turn(self, context: Any) -> None:
        await self.stash({"turn": context.request_id})

    async def on_chat_response(self, result: Any) -> None:
        await forever()

    @tool(effect="read")
    async def work(self, call: ToolCall) -> str:
        return "done"

    @tool
    async def look(self, call: ToolCall) -> str:
        return "seen"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a row in each table, left behind by a process that was killed twice."""
    path = tmp_path_factory.mktemp("full") / "full.db"

    async def live(life: str, after: float) -> None:
        async with hosting(Full, url=f"sqlite:///{path}", life=life, shutdown_timeout=0) as host:
            agent = host.get(Full, "a")
            if life == "1":
                await agent.begin()
                await agent.save_messages("u0")
                await agent.submit_messages("work", submission_id="s1", metadata={"x": 1})
                await agent.submit_messages("u2", submission_id="s2", body={"y": 1})
            await asyncio.sleep(after)

    for life, after in (("1", 2.5), ("2", 1.5)):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(live(life, after))
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO boots VALUES ('Full/a', 1, 0)")
        database.execute("INSERT INTO traces VALUES ('Full/a', 's1', '00-0-0-00')")
        database.execute("INSERT INTO admissions VALUES ('Full/a', 'fiber:f1', 'k')")
        database.execute("INSERT INTO receipts VALUES ('Full/a', 's', 'k', '1', 0)")
        database.execute("INSERT INTO session_blocks VALUES ('Full/a', 'memory', '', 'x', NULL, 0)")
        database.execute("INSERT INTO session_overlays VALUES ('Full/a', 1, NULL, 'm', 's', 1, 0)")
        database.commit()
        for table in tables(path):
            [(count,)] = database.execute(f"SELECT count(*) FROM {table}").fetchall()
            assert count, f"{table} has no row"
    return path


def tables(path: Path) -> dict[str, list[tuple[str, str]]]:
    """The tables, each with its columns and their types."""
    with closing(sqlite3.connect(path)) as database:
        names = database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        )
        return {
            name: [(row[1], row[2]) for row in database.execute(f"PRAGMA table_info({name})")]
            for (name,) in names.fetchall()
            if name != "meta" and not name.startswith("session_words")  # triggers fill these
        }


GARBAGE: dict[str, list[Any]] = {
    "TEXT": ["no JSON {", "", "null", "[]", '{"a":', "\x00"],
    "INTEGER": [2**62, "no number", -1, 0],
}
TABLES = [
    "agents", "storage", "fibers", "alarms", "schedules", "facts", "sub_agents", "admissions", "messages",
    "inbox", "streams", "calls", "receipts", "responses", "traces", "incidents", "boots", "decisions",
    "session_blocks", "session_overlays", "session_texts", "session_indexed",
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
async def test_whatever_a_row_holds_the_agent_boots_and_answers(
    table: str, full: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # it is told often enough
    known = tables(full)
    assert sorted(known) == sorted(TABLES), "each table is damaged here"
    life = 2
    for place, (column, kind) in enumerate(known[table]):
        values = GARBAGE[kind]  # each column is damaged in two of these ways
        for garbage in (values[place % len(values)], values[(place + 1) % len(values)]):
            if table == "agents" and garbage == "no number":
                continue  # who owns it is not guessed: see below
            life += 1
            path = tmp_path / f"{life}.db"
            shutil.copy(full, path)
            with closing(sqlite3.connect(path)) as database:
                try:
                    database.execute(f"UPDATE OR REPLACE {table} SET {column} = ?", (garbage,))
                except sqlite3.IntegrityError:
                    continue
                database.commit()
            where = f"{table}.{column} = {garbage!r}"
            async with hosting(
                Full, url=f"sqlite:///{path}", life=str(life), shutdown_timeout=0
            ) as host:
                agent = host.get(Full, "a")
                try:
                    async with asyncio.timeout(30):
                        await agent.get_messages()
                        turn = await agent.save_messages("u3")
                        assert turn.status == "completed", where
                        assert turn.message.text == "Fine."
                        await agent.storage_and_all()
                except Exception as error:
                    raise AssertionError(f"{where}: {error!r}") from error
                assert (
                    host._boot_task is None
                    or not host._boot_task.done()
                    or (host._boot_task.exception() is None)
                ), where
            path.unlink()


async def test_who_owns_an_agent_is_not_guessed(full: Path, tmp_path: Path) -> None:
    shutil.copy(full, path := tmp_path / "a.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE agents SET epoch = 'no number'")
        database.commit()
    async with hosting(Full, url=f"sqlite:///{path}", life="3") as host:
        with pytest.raises(StoreCorrupt, match="the ownership row of Full/a is damaged"):
            await host.get(Full, "a").get_messages()
        assert await host.get(Full, "b").get_messages() == [], "others are not harmed"


@pytest.mark.invariant("O8")
async def test_a_turn_that_an_older_version_has_left_goes_on(full: Path, tmp_path: Path) -> None:
    """That version knew neither incidents nor boots."""
    shutil.copy(full, path := tmp_path / "a.db")
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "DROP TABLE incidents; DROP TABLE boots; DROP TABLE decisions; DROP TABLE receipts;"
            " DELETE FROM responses;"
            " ALTER TABLE inbox DROP COLUMN detail; ALTER TABLE fibers DROP COLUMN crashes;"
            " ALTER TABLE schedules DROP COLUMN crashes"
        )
        database.execute("UPDATE meta SET value = '4' WHERE key = 'schema_version'")
        assert database.total_changes
        database.commit()
    async with hosting(Full, url=f"sqlite:///{path}", life="3", shutdown_timeout=0) as host:
        agent = host.get(Full, "a")
        told = Told(host)
        assert (await agent.save_messages("u3")).status == "completed"
        assert len(told.decided) == 1
        assert told.decided[0][1] in ("continue", "splice")
        found = await agent.get_messages()
        said = [message.text for message in found if message.role == "user"]
        assert said == ["u0", "work", "u2", "u3"]
        assert found[3].text.startswith("Let me see. one ")


@pytest.mark.invariant("O8", "G16")
async def test_a_record_of_an_older_version_is_gone_on_with(full: Path, tmp_path: Path) -> None:
    shutil.copy(full, path := tmp_path / "a.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute('UPDATE incidents SET body = \'{"attempt": 2, "unknown": [1]}\'')
        database.commit()
    async with hosting(Full, url=f"sqlite:///{path}", life="3", shutdown_timeout=0) as host:
        told = Told(host)
        await asyncio.sleep(20)
        assert told.decided[0][:2] == (19, "continue")
        assert (await host.get(Full, "a").inspect_submission("s1")).status == "completed"


@pytest.mark.invariant("O2")
async def test_a_conversation_of_200_mb_is_read_in_part(full: Path, tmp_path: Path) -> None:
    shutil.copy(full, path := tmp_path / "a.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = OFF")
        [(leaf,)] = database.execute("SELECT id FROM messages ORDER BY number LIMIT 1").fetchall()
        database.execute(
            """
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
            INSERT INTO messages
            SELECT 'Full/a', 'big' || i, CASE i WHEN 1 THEN NULL ELSE 'big' || (i - 1) END, -3000 + i,
                'user', 'settled', NULL, 100000,
                '{"id":"big' || i || '","role":"user","parts":[{"type":"text","text":"'
                || hex(zeroblob(50000)) || '"}]}', 0
            FROM n
            """
        )
        database.execute("UPDATE messages SET parent = 'big2000' WHERE id = ?", (leaf,))
        database.commit()
    assert path.stat().st_size > 200_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with hosting(Full, url=f"sqlite:///{path}", life="3", shutdown_timeout=0) as host:
        read = count_bytes(host)
        agent = host.get(Full, "a")
        turn = await agent.save_messages("u3")
        assert turn.message.text == "Fine."
        assert await agent.get_message("big1") is not None, "all of it is there"
        assert read[0] < 2 * WINDOW_BYTES
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 200, f"{grown:.0f} MB"


def count_bytes(host: Any) -> list[int]:
    """How much was read from the store, from now on."""
    total, fetch = [0], host.store.fetch

    async def counting(query: Any, *arguments: Any) -> Any:
        found = await fetch(query, *arguments)
        total[0] += sum(len(value) for row in found for value in row if isinstance(value, str))
        return found

    host.store.fetch = counting
    return total
