"""The floors: rows of words, read at the start, and the next word. Nothing is decided, counted or fenced."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.recovery.words import WORDS, spoken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SCHEMA = "create table if not exists words (answer text, seq integer, word text, primary key (answer, seq))"


class Floor:
    """A commit a word. With a model, that is asked as outlast asks it; without, words come by themselves."""

    def __init__(self, directory: str, *, has_model: bool) -> None:
        self._path = Path(directory) / "floor.db"
        self._has_model = has_model
        if has_model:
            import pydantic_ai.models

            self._interface = pydantic_ai.models  # imported at the start, as servers do
        self._words: dict[str, list[str]] = {}
        self._more = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._db = sqlite3.connect(self._path, isolation_level=None)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.execute(SCHEMA)
        for answer, word in self._db.execute("select answer, word from words order by seq"):
            self._words.setdefault(answer, []).append(word)
        for answer, words in self._words.items():
            if len(words) < WORDS:
                self._go_on(answer)
        yield

    def _go_on(self, answer: str) -> None:
        task = asyncio.create_task(self._answer(answer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, answer: str) -> None:
        words = self._words.setdefault(answer, [])
        async for word in self._asked(words) if self._has_model else spoken(len(words)):
            self._db.execute("insert into words values (?, ?, ?)", (answer, len(words), word))
            words.append(word)
            more, self._more = self._more, asyncio.Event()
            more.set()

    async def _asked(self, words: list[str]) -> AsyncIterator[str]:
        """The words that follow, through Pydantic AI's interface of models."""
        from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart
        from pydantic_ai.models import ModelRequestParameters

        from benchmarks.recovery.words import model

        messages: list[Any] = [ModelRequest.user_text_prompt("Say the words.")]
        if words:
            messages.append(ModelResponse([TextPart("".join(words))]))
        async with model().request_stream(messages, None, ModelRequestParameters()) as answer:
            async for event in answer:
                if event.event_kind == "part_start":
                    yield event.part.content
                elif event.event_kind == "part_delta":
                    yield event.delta.content_delta

    async def begin(self, id: str) -> None:
        self._go_on(id)

    async def latest(self) -> str | None:
        return next(iter(self._words), None)

    async def words(self, id: str) -> AsyncIterator[str]:
        at = 0
        while at < WORDS:
            if at < len(self._words.get(id, ())):
                yield self._words[id][at]
                at += 1
            else:
                await self._more.wait()

    async def stored(self, id: str) -> str:
        rows = self._db.execute("select word from words where answer = ? order by seq", (id,))
        return "".join(word for (word,) in rows)
