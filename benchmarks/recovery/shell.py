"""The others behind the same WebSocket.

`python -m benchmarks.recovery.shell SYSTEM DIRECTORY PORT [supervised]`
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

PREFIX = '{"type":"text-delta","id":"t","delta":'


class Talker(Protocol):
    """A system that answers, and goes on after it was interrupted."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """From its start, which takes up what was interrupted, to its end."""

    async def begin(self, id: str) -> None:
        """Answer."""

    async def latest(self) -> str | None:
        """The request whose answer is under way, or has just ended."""

    def words(self, id: str) -> AsyncIterator[str]:
        """Of an answer: what there is, then what comes, to its end."""

    async def stored(self, id: str) -> str:
        """The text of an answer, as the store has it."""


def application(talker: Talker) -> Any:
    """It, as a Starlette application that speaks as much of the protocol as the client does."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.routing import Route, WebSocketRoute

    async def tell(connection: Any, id: str) -> None:
        head = f'{{"type":"cf_agent_use_chat_response","id":{json.dumps(id)},"body":'
        async for said in talker.words(id):
            body = json.dumps(f"{PREFIX}{json.dumps(said)}}}")
            await connection.send_text(f'{head}{body},"done":false}}')
        await connection.send_text(f'{head}"","done":true}}')

    async def serve(connection: Any) -> None:
        await connection.accept()
        await connection.send_text('{"type":"cf_agent_identity","name":"bench"}')
        async for text in connection.iter_text():
            frame = json.loads(text)
            kind = frame["type"]
            if kind == "cf_agent_use_chat_request":
                await talker.begin(frame["id"])
                await tell(connection, frame["id"])
            elif kind == "cf_agent_stream_resume_request":
                id = await talker.latest()
                offer = {"type": "cf_agent_stream_resuming", "id": id}
                none = {"type": "cf_agent_stream_resume_none"}
                await connection.send_text(json.dumps(none if id is None else offer))
            elif kind == "cf_agent_stream_resume_ack":
                await tell(connection, frame["id"])

    async def health(_: Any) -> Any:
        return PlainTextResponse("ok")

    async def messages(request: Any) -> Any:
        text = await talker.stored(request.query_params["id"])
        return JSONResponse([{"role": "assistant", "parts": [{"type": "text", "text": text}]}])

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with talker.running():
            yield

    routes = [
        WebSocketRoute("/agents/words/chat", serve),
        Route("/agents/words/chat/get-messages", messages),
        Route("/healthz", health),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def talker(system: str, directory: str) -> Talker:
    """The system of this name, over a store there."""
    if system.startswith("floor"):
        from benchmarks.recovery.floor import Floor

        return Floor(directory, has_model=system == "floor-full")
    if system == "dbos":
        from benchmarks.recovery.dbos import Workflows

        return Workflows(directory)
    from benchmarks.recovery.langgraph import Threads

    return Threads(directory)


def serve(system: str, directory: str, port: int, listening: socket.socket | None = None) -> None:
    """Until it is killed."""
    import uvicorn

    config = uvicorn.Config(
        application(talker(system, directory)), host="127.0.0.1", port=port, log_level="error"
    )
    uvicorn.Server(config).run(None if listening is None else [listening])


def supervised(system: str, directory: str, port: int) -> None:
    """The least that a supervisor does: it holds the socket, has the imports done, and forks."""
    listening = socket.create_server(("127.0.0.1", port), backlog=100)
    import starlette.applications  # noqa: F401
    import uvicorn.lifespan.on
    import uvicorn.loops.uvloop
    import uvicorn.protocols.http.auto
    import uvicorn.protocols.websockets.auto  # noqa: F401

    talker(system, directory)
    while True:
        worker = os.fork()
        if worker == 0:
            serve(system, directory, port, listening)
            return
        os.waitpid(worker, 0)


def main(system: str, directory: str, port: str, *how: str) -> None:
    if how:
        supervised(system, directory, int(port))
    else:
        serve(system, directory, int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
