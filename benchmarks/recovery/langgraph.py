"""LangGraph: an answer is a run of a graph with one node, which asks the model, and a checkpoint after it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.recovery.words import spoken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def speaking_graph(speak: Callable[[str], AsyncIterator[str]]) -> Any:
    """The graph. Its node is given the conversation as it was before it ran: no partial answer is kept."""
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessageChunk
    from langchain_core.outputs import ChatGenerationChunk
    from langgraph.graph import END, START, MessagesState, StateGraph

    class Speaker(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "words"

        def _generate(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError("it streams, and nothing else")

        async def _astream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
            async for said in speak(messages[-1].content):
                yield ChatGenerationChunk(message=AIMessageChunk(content=said))

    speaker = Speaker()

    async def answer(state: Any) -> dict[str, object]:
        return {"messages": [await speaker.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph


class Threads:
    """A thread for each request. At the start, those with something left to do are resumed.

    `speak` is what the model says to the request of an id.
    """

    def __init__(
        self, directory: str, speak: Callable[[str], AsyncIterator[str]] = lambda _: spoken()
    ) -> None:
        self._speak = speak
        self._path = str(Path(directory) / "langgraph.db")
        self._words: dict[str, list[str]] = {}  # of this life
        self._more = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        import langgraph.graph  # as servers do
        from langgraph.checkpoint.sqlite import aio

        self._modules = langgraph.graph, aio

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(self._path) as saver:
            self._app = speaking_graph(self._speak).compile(checkpointer=saver)
            known = {each.config["configurable"]["thread_id"] async for each in saver.alist(None)}
            for thread in known:
                if (await self._app.aget_state(self._place(thread))).next:
                    self._run(thread, None)
            yield

    def _place(self, thread: str) -> Any:
        return {"configurable": {"thread_id": thread}}

    def _run(self, thread: str, said: Any) -> None:
        self._running[thread] = asyncio.create_task(self._answer(thread, said))

    async def _answer(self, thread: str, said: Any) -> None:
        words = self._words.setdefault(thread, [])
        place = self._place(thread)
        async for chunk, _ in self._app.astream(said, place, stream_mode="messages"):
            if chunk.content:
                words.append(chunk.content)
                self._tell()

    def _tell(self) -> None:
        more, self._more = self._more, asyncio.Event()
        more.set()

    async def begin(self, id: str) -> None:
        self._run(id, {"messages": [("user", id)]})

    async def latest(self) -> str | None:
        return next(iter(self._running), None)

    async def words(self, id: str) -> AsyncIterator[str]:
        at, task = 0, self._running[id]
        while True:
            words = self._words.get(id, [])
            if at < len(words):
                yield words[at]
                at += 1
            elif task.done():
                return
            else:
                more = asyncio.ensure_future(self._more.wait())
                await asyncio.wait({more, task}, return_when=asyncio.FIRST_COMPLETED)

    async def stored(self, id: str) -> str:
        state = await self._app.aget_state(self._place(id))
        messages = state.values.get("messages", [])
        return "".join(each.content for each in messages if each.type == "ai")
