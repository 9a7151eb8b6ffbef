"""The other side: `python -m benchmarks.wire.server PORT SETTINGS`."""

from __future__ import annotations

import asyncio
import json
import queue
import resource
import sqlite3
import sys
import threading
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chat_floors import APPEND, PREFIX, PUT, SCHEMA
from benchmarks.deltas import QUESTION, model, numbered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

AHEAD = 64  # deltas that the floor's model may be ahead of what is durable
A_GROUP = 1000  # statements that share a commit, at most
A_SECOND = 50  # deltas of a steady model


@dataclass(frozen=True)
class Settings:
    """What is served, to the last detail."""

    system: str
    """`ours`, `floor` or `langgraph`."""
    directory: str
    durability: str = "full"
    deltas: int = 500
    pace: str = ""
    """Empty: the model never pauses. `steady`: 50 deltas a second. `holds`: its answer never ends."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def raise_limits() -> None:
    """A thousand sockets are more than some systems allow by themselves."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Steady:
    """So many deltas a second, whatever the listeners do."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def __call__(self, i: int) -> None:
        await asyncio.sleep(max(0.0, self._began + i / A_SECOND - self._loop.time()))


class Holding:
    """An answer that is complete but for its end."""

    def __init__(self, deltas: int) -> None:
        self._deltas = deltas

    async def __call__(self, i: int) -> None:
        if i == self._deltas:
            await asyncio.get_running_loop().create_future()


def ours(settings: Settings) -> Any:
    """outlast's own application."""
    from outlast import App, Think

    paces = {"": None, "steady": Steady, "holds": lambda: Holding(settings.deltas)}

    class Chat(Think):
        pass

    Chat.model = model(settings.deltas, numbered, paces[settings.pace])
    path = Path(settings.directory) / "chat.db"
    return App(agents=[Chat], store=f"sqlite:///{path}?synchronous={settings.durability}")


class Writer:
    """A thread that commits whatever has been queued meanwhile, and tells who waits."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[str, tuple[Any, ...], asyncio.Future[None]]]
        self._queue = queue.SimpleQueue()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute(f"pragma synchronous = {synchronous}")
        self._db.executescript(SCHEMA)
        threading.Thread(target=self._run, daemon=True).start()

    def write(self, statement: str, *row: Any) -> asyncio.Future[None]:
        """Queues a row; the future is done when it is durable."""
        stored = self._loop.create_future()
        self._queue.put((statement, row, stored))
        return stored

    def _run(self) -> None:
        while True:
            group = [self._queue.get()]
            while len(group) < A_GROUP and not self._queue.empty():
                group.append(self._queue.get())
            self._db.execute("begin immediate")
            for statement, row, _ in group:
                self._db.execute(statement, row)
            self._db.execute("commit")
            self._loop.call_soon_threadsafe(self._tell, group)

    @staticmethod
    def _tell(group: list[Any]) -> None:
        for *_, stored in group:
            if not stored.done():
                stored.set_result(None)


class Frames:
    """The frames of one answer, as outlast sends them."""

    def __init__(self, id: str) -> None:
        self._head = f'{{"type":"cf_agent_use_chat_response","id":{json.dumps(id)},"body":'

    def chunk(self, seq: int, chunk: str) -> str:
        return f'{self._head}{json.dumps(chunk)},"done":false,"seq":{seq}}}'

    def done(self) -> str:
        return f'{self._head}"","done":true}}'


class Bare:
    """A WebSocket, a group commit, and nothing else: no agent, no model, no recovery."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        path = Path(self._settings.directory) / "floor.db"
        self._writer = Writer(path, self._settings.durability)
        yield

    async def answer(self, agent: str, id: str, socket: Any) -> None:
        """A delta is sent once it is durable; the model goes on meanwhile."""
        write, frames = self._writer.write, Frames(id)
        waiting: asyncio.Queue[tuple[str, asyncio.Future[None]]] = asyncio.Queue(AHEAD)
        said: list[str] = []
        pace = Steady() if self._settings.pace == "steady" else None

        async def say() -> None:
            for i in range(self._settings.deltas):
                if pace is not None:
                    await pace(i)
                delta = numbered(i)
                said.append(delta)
                chunk = f"{PREFIX}{json.dumps(delta)}}}"
                await waiting.put((frames.chunk(i, chunk), write(APPEND, agent, id, i, chunk)))

        question = json.dumps({"role": "user", "text": QUESTION})
        await write(PUT, agent, f"{id}-question", question)
        saying = asyncio.create_task(say())
        for _ in range(self._settings.deltas):
            text, stored = await waiting.get()
            await stored
            await socket.send_text(text)
        await saying
        message = json.dumps({"role": "assistant", "text": "".join(said)})
        await write(PUT, agent, f"{id}-answer", message)
        await socket.send_text(frames.done())


class Graph:
    """LangGraph behind a WebSocket: what it stores is the whole answer, at its end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        from benchmarks.peers.langgraph import talking_graph

        path = str(Path(self._settings.directory) / "langgraph.db")
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            graph = talking_graph(self._settings.deltas, numbered)
            self._app = graph.compile(checkpointer=saver)
            yield

    async def answer(self, agent: str, id: str, socket: Any) -> None:
        frames, seq = Frames(id), 0
        said = {"messages": [("user", QUESTION)]}
        place = {"configurable": {"thread_id": agent}}
        async for chunk, _ in self._app.astream(said, place, stream_mode="messages"):
            if chunk.content:
                body = f"{PREFIX}{json.dumps(chunk.content)}}}"
                await socket.send_text(frames.chunk(seq, body))
                seq += 1
        await socket.send_text(frames.done())


def talking(talker: Bare | Graph) -> Any:
    """A Starlette application whose sockets are answered by it."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route, WebSocketRoute

    async def serve(socket: Any) -> None:
        name = socket.path_params["name"]
        await socket.accept()
        await socket.send_text(json.dumps({"type": "cf_agent_identity", "name": name}))
        async for text in socket.iter_text():
            await talker.answer(name, json.loads(text)["id"], socket)

    async def health(_: Any) -> Any:
        return PlainTextResponse("ok")

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with talker.running():
            yield

    routes = [WebSocketRoute("/agents/chat/{name}", serve), Route("/healthz", health)]
    return Starlette(routes=routes, lifespan=lifespan)


def main(port: str, settings: str) -> None:
    """Serves until it is killed: outlast as `outlast serve` does, the others with uvicorn as it is."""
    raise_limits()
    asked = Settings(**json.loads(settings))
    where: dict[str, Any] = {"host": "127.0.0.1", "port": int(port), "log_level": "error"}
    if asked.system == "ours":
        from outlast.server.uvicorn_server import Server

        Server(ours(asked), **where).run()
    else:
        import uvicorn

        uvicorn.run(talking(Bare(asked) if asked.system == "floor" else Graph(asked)), **where)


if __name__ == "__main__":
    main(*sys.argv[1:])
