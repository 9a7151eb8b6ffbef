"""A client of one agent for a terminal: the connection on its own thread, the user on the main one.

So the user can type while the connection stays alive, and Ctrl-C stops the answer or the prompt, never the
event loop.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from outlast.client import Client, Closed, TurnFailed

T = TypeVar("T")

CONNECT_WITHIN = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class News:
    """News of an answer: a chunk, its end, or its failure."""

    kind: Literal["chunk", "end", "failed"]
    chunk: dict[str, Any] | None = None
    text: str = ""


class Talk:
    """The connection to one agent."""

    def __init__(self, url: str, agent: str, name: str, headers: Mapping[str, str]) -> None:
        self._client = Client(url, agent, name, headers=headers)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="chat", daemon=True)
        self._offers: queue.Queue[str] = queue.Queue()
        self._listening: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._do(self._open(), CONNECT_WITHIN + 1)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._do(self._close())
        self._stop()

    def _run(self) -> None:
        """Run the event loop on the thread until it is stopped, leaving no tasks behind."""
        try:
            self._loop.run_forever()
            for task in (left := asyncio.all_tasks(self._loop)):
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2)

    async def _open(self) -> None:
        async with asyncio.timeout(CONNECT_WITHIN):
            await self._client.__aenter__()
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for id in self._client.offers():
            self._offers.put(id)

    async def _close(self) -> None:
        await self._client.__aexit__()
        if self._listening is not None:
            self._listening.cancel()

    # --- called on the main thread ---------------------------------------------------------------

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self._client.messages

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    @property
    def is_recovering(self) -> bool:
        return self._client.is_recovering

    def say(self, text: str) -> tuple[str, queue.Queue[News]]:
        """Send a message. Returns the id of the turn, and the queue of news about its answer."""
        id = secrets.token_hex(8)
        return id, self._follow(self._client.send(text, request_id=id))

    def resume(self, id: str) -> queue.Queue[News]:
        """Return the news of a running turn, from its beginning."""
        return self._follow(self._client.resume(id))

    def offered(self, timeout: float | None = 0) -> str | None:
        """Return the id of a turn that began without this client, if one does within the timeout."""
        try:
            if timeout == 0:
                return self._offers.get_nowait()
            return self._offers.get(timeout=timeout)
        except queue.Empty:
            return None

    def cancel(self, id: str) -> None:
        self._do(self._client.cancel(id))

    def clear(self) -> None:
        self._do(self._client.clear())

    def approve(self, call_id: str, yes: bool) -> None:
        self._do(self._client.add_tool_approval(call_id, yes))

    def _follow(self, chunks: AsyncIterator[dict[str, Any]]) -> queue.Queue[News]:
        news: queue.Queue[News] = queue.Queue()

        async def follow() -> None:
            try:
                async for chunk in chunks:
                    news.put(News("chunk", chunk))
            except TurnFailed as error:
                news.put(News("failed", text=str(error)))
            except Closed:
                news.put(News("end"))
            except Exception as error:
                news.put(News("failed", text=f"{type(error).__name__}: {error}"))
            else:
                news.put(News("end"))

        asyncio.run_coroutine_threadsafe(follow(), self._loop)
        return news
