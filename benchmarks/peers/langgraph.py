"""LangGraph: a super-step of a graph saves a checkpoint; a run of a graph is a unit, or a turn."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypedDict

from benchmarks.catalogue import Job
from benchmarks.deltas import AT_ONCE, DELTAS, QUESTION, Hear, now, streams, turns
from benchmarks.drive import Driver, at_a_time, in_loop, one_by_one
from benchmarks.payload import payload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from benchmarks.meter import Metrics
    from benchmarks.place import Place


@contextlib.asynccontextmanager
async def saver(store: str, place: Place) -> AsyncIterator[Any]:
    """A checkpoint saver: `sqlite`, `postgres` (one connection) or `pool` (20 connections)."""
    if store == "sqlite":
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        path = str(place.directory / "langgraph.db")
        async with AsyncSqliteSaver.from_conn_string(path) as opened:
            yield opened
        return
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    if store == "postgres":
        async with AsyncPostgresSaver.from_conn_string(place.postgres) as opened:
            await opened.setup()
            yield opened
        return
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    connections = AsyncConnectionPool(
        place.postgres, min_size=20, max_size=20, kwargs=settings, open=False
    )
    async with connections as pool:
        opened = AsyncPostgresSaver(pool)
        await opened.setup()
        yield opened


class Progress(TypedDict):
    """The state of the graph: which step, of how many, and the payload."""

    i: int
    n: int
    saved: dict[str, object]


def looping_graph() -> Any:
    """A graph whose one node runs n times."""
    from langgraph.graph import END, START, StateGraph

    async def step(state: Progress) -> dict[str, object]:
        return {"i": state["i"] + 1, "saved": payload(state["i"])}

    graph = StateGraph(Progress)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if state["i"] >= state["n"] else "step")
    return graph


async def checkpoints(store: str, durability: str, place: Place, n: int) -> Metrics:
    """W1: n super-steps of one run."""
    async with saver(store, place) as opened:
        app = looping_graph().compile(checkpointer=opened)

        async def run(thread: str, steps: int) -> None:
            await app.ainvoke(
                {"i": 0, "n": steps, "saved": {}},
                {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10},
                durability=durability,
            )

        await run("warm", 20)
        with place.meter() as meter:
            await run("measured", n)
    return meter.each(n)


async def units(driver: Driver, store: str, place: Place, n: int) -> Metrics:
    """W2: runs of a graph with one empty node, each in its own thread id."""
    async with saver(store, place) as opened:
        app = looping_graph().compile(checkpointer=opened)

        async def unit(key: str) -> None:
            await app.ainvoke({"i": 0, "n": 1, "saved": {}}, {"configurable": {"thread_id": key}})

        return await driver(unit, n, place.meter())


def talking_graph(deltas: int, say: Callable[[int], str] = now) -> Any:
    """A graph whose one node asks a model of so many deltas."""
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessageChunk
    from langchain_core.outputs import ChatGenerationChunk
    from langgraph.graph import END, START, MessagesState, StateGraph

    class Talker(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "talker"

        def _generate(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError("it streams, and nothing else")

        async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            for i in range(deltas):
                yield ChatGenerationChunk(message=AIMessageChunk(content=say(i)))

    talker = Talker()

    async def answer(state: Any) -> dict[str, object]:
        return {"messages": [await talker.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph


async def talk_with(store: str, at_once: int, deltas: int, place: Place, n: int) -> Metrics:
    """W3, or W3t if there is but one delta: the answer is stored when it is complete."""
    async with saver(store, place) as opened:
        app = talking_graph(deltas).compile(checkpointer=opened)

        async def talk(thread: str, hear: Hear) -> None:
            said = {"messages": [("user", QUESTION)]}
            place = {"configurable": {"thread_id": thread}}
            async for chunk, _ in app.astream(said, place, stream_mode="messages"):
                if chunk.content:
                    hear(chunk.content)

        if deltas == 1:
            return await turns(talk, n, place.meter())
        return await streams(talk, at_once, n, place.meter())


JOBS = [
    Job(
        "w1",
        "langgraph-sqlite-async",
        "LangGraph SQLite, async (default)",
        "full",
        in_loop(checkpoints, "sqlite", "async"),
        300,
    ),
    Job(
        "w1",
        "langgraph-sqlite-sync",
        "LangGraph SQLite, sync",
        "full",
        in_loop(checkpoints, "sqlite", "sync"),
        300,
    ),
    Job(
        "w1",
        "langgraph-postgres-async",
        "LangGraph PostgreSQL, async (default)",
        "postgres",
        in_loop(checkpoints, "postgres", "async"),
        300,
    ),
    Job(
        "w1",
        "langgraph-postgres-sync",
        "LangGraph PostgreSQL, sync",
        "postgres",
        in_loop(checkpoints, "postgres", "sync"),
        300,
    ),
    Job(
        "w2",
        "langgraph-sqlite",
        "LangGraph SQLite",
        "full",
        in_loop(units, one_by_one, "sqlite"),
        200,
    ),
    Job(
        "w2",
        "langgraph-postgres",
        "LangGraph PostgreSQL",
        "postgres",
        in_loop(units, one_by_one, "postgres"),
        200,
    ),
    Job(
        "w2c",
        "langgraph-sqlite",
        "LangGraph SQLite",
        "full",
        in_loop(units, at_a_time, "sqlite"),
        500,
    ),
    Job(
        "w2c",
        "langgraph-postgres",
        "LangGraph PostgreSQL, 20 connections",
        "postgres",
        in_loop(units, at_a_time, "pool"),
        500,
    ),
    Job(
        "w3",
        "langgraph-sqlite",
        "LangGraph SQLite, stores the whole",
        "full",
        in_loop(talk_with, "sqlite", 1, DELTAS),
        40,
    ),
    Job(
        "w3",
        "langgraph-postgres",
        "LangGraph PostgreSQL, stores the whole",
        "postgres",
        in_loop(talk_with, "postgres", 1, DELTAS),
        40,
    ),
    Job(
        "w3c",
        "langgraph-sqlite",
        "LangGraph SQLite, stores the whole",
        "full",
        in_loop(talk_with, "sqlite", AT_ONCE, DELTAS),
        200,
    ),
    Job(
        "w3c",
        "langgraph-postgres",
        "LangGraph PostgreSQL, 20 connections, stores the whole",
        "postgres",
        in_loop(talk_with, "pool", AT_ONCE, DELTAS),
        200,
    ),
    Job(
        "w3t",
        "langgraph-sqlite",
        "LangGraph SQLite",
        "full",
        in_loop(talk_with, "sqlite", 1, 1),
        300,
    ),
    Job(
        "w3t",
        "langgraph-postgres",
        "LangGraph PostgreSQL",
        "postgres",
        in_loop(talk_with, "postgres", 1, 1),
        300,
    ),
]
