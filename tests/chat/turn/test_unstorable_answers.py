"""Commits that fail: one that can never succeed ends its turn, and no call hurries the next attempt."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import asyncpg
import pytest

from outlast import OutlastError, Think
from outlast.store.postgres.engine import parse
from outlast.testing import ScriptedModel
from support import hosting

SNOWMAN = "\N{SNOWMAN}"


def said(_: Any) -> str:
    Talker.asked += 1
    return f"It looks like this: {SNOWMAN}. Nice?" if Talker.asked < 50 else "Enough."


class Talker(Think):
    model = ScriptedModel.answering(said)
    asked = 0
    errors: list[str] = []

    def on_chat_error(self, error: Exception, context: Any = None) -> Any:
        Talker.errors.append(type(error).__name__)
        return error


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Talker.asked = 0
    Talker.errors = []


@asynccontextmanager
async def database(url: str) -> AsyncIterator[Any]:
    dsn, schema = parse(url)
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    try:
        yield connection
    finally:
        await connection.close()


async def refuse_snowmen(url: str) -> None:
    """As a database in LATIN1 would, and any that has a rule about what it holds."""
    async with database(url) as db:
        await db.execute(f"ALTER TABLE streams ADD CHECK (body NOT LIKE '%{SNOWMAN}%')")


async def have_no_space_for_snowmen(url: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            db.executescript(f"""
                CREATE TRIGGER full BEFORE INSERT ON streams WHEN NEW.body LIKE '%{SNOWMAN}%'
                BEGIN SELECT RAISE(ABORT, 'no space'); END;
            """)
        return
    async with database(url) as db:
        await db.execute(f"""
            CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF NEW.body LIKE '%{SNOWMAN}%' THEN RAISE 'full' USING ERRCODE = '53100'; END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER complain BEFORE INSERT ON streams
                FOR EACH ROW EXECUTE FUNCTION complain()
        """)


@pytest.mark.virtual_time
async def test_an_answer_that_the_database_does_not_accept_is_one_error_and_one_request(
    postgres_url: str,
) -> None:
    async with hosting(Talker, url=postgres_url) as host:
        await refuse_snowmen(postgres_url)
        talker = host.get(Talker, "a")
        submission = await talker.submit_messages("What does snow look like?")
        for _ in range(20):
            with suppress(OutlastError):
                await talker.get_messages()
            await asyncio.sleep(0.05)
        await asyncio.sleep(600)
        assert Talker.asked == 1
        found = await talker.inspect_submission(submission.id)
        assert (found.status, found.error) == ("error", "The answer could not be stored.")
        assert Talker.errors == ["AnswerNotStored"]
        assert SNOWMAN not in str(await talker.get_messages())
        Talker.asked = 50
        again = await talker.submit_messages("And now?")
        await host.until_settled()
        assert (await talker.inspect_submission(again.id)).status == "completed"


@pytest.mark.virtual_time
async def test_a_call_does_not_hurry_the_next_attempt_of_an_agent_that_fails_again_and_again(
    store_url: str,
) -> None:
    async with hosting(Talker, url=store_url) as host:
        await have_no_space_for_snowmen(store_url)
        talker = host.get(Talker, "a")
        await talker.submit_messages("What does snow look like?")
        for _ in range(100):
            with suppress(OutlastError):
                await talker.get_messages()
            await asyncio.sleep(0.01)
        assert Talker.asked <= 3, "the first attempt, one by a call, and one a second later"
