"""DBOS: an answer is a workflow with one step, which writes what the model says to a durable stream."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.recovery.words import spoken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

STREAM = "words"


class Workflows:
    """A workflow for each request. DBOS resumes by itself what was interrupted.

    `speak` is what the model says to the request of an id.
    """

    def __init__(
        self, directory: str, speak: Callable[[str], AsyncIterator[str]] = lambda _: spoken()
    ) -> None:
        import dbos

        self._speak = speak
        self._dbos: Any = dbos
        self._path = Path(directory) / "dbos.db"
        sqlite3.connect(self._path).execute("pragma journal_mode = wal")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        durable = self._dbos.DBOS
        durable(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{self._path}",
                "log_level": "ERROR",
                "application_version": "1",
                "executor_id": "local",
            }
        )

        @durable.step()
        async def speak(id: str) -> None:
            async for said in self._speak(id):
                await durable.write_stream_async(STREAM, said)

        @durable.workflow()
        async def answer(id: str) -> None:
            await speak(id)
            await durable.close_stream_async(STREAM)

        self._answer = answer
        durable.launch()
        yield
        durable.destroy()

    async def begin(self, id: str) -> None:
        with self._dbos.SetWorkflowID(id):
            await self._dbos.DBOS.start_workflow_async(self._answer, id)

    async def latest(self) -> str | None:
        found = await self._dbos.DBOS.list_workflows_async()
        return found[0].workflow_id if found else None

    def words(self, id: str) -> AsyncIterator[str]:
        found: AsyncIterator[str] = self._dbos.DBOS.read_stream_async(id, STREAM)
        return found

    async def stored(self, id: str) -> str:
        return "".join([said async for said in self.words(id)])
