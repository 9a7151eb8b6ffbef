"""One connection to one agent, which comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

from outlast.core import json

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

FIRST_RETRY, LAST_RETRY = 0.1, 5.0  # seconds
TERMINAL = {1008, *range(4000, 5000)}  # close codes after which nobody comes back


class Refused(Exception):
    """The server does not want this client, and said so for good."""


class TurnFailed(Exception):
    """The turn ended with an error; the text is what its users are shown."""


class CallFailed(Exception):
    """A call raised on the server, or could not be made."""


class _Request:
    """A turn that somebody follows."""

    def __init__(self, id: str, frame: str | None) -> None:
        self.id = id
        self.frame = frame  # what asked for it, as long as nothing of an answer has come
        self.chunks: asyncio.Queue[dict[str, Any] | BaseException | None] = asyncio.Queue()
        self.next = 0  # the seq of the next chunk that is news
        self.outcome: str | None = None


class Client:
    """Talks to one agent.

    ```python no-run
    from outlast.client import Client

    async with Client("http://localhost:8000", "assistant", "alice") as alice:
        async for chunk in alice.send("Hello"):
            print(chunk)
        total = await alice.call("add", 1, 2)
    ```

    A lost connection is made again, and whatever was missed is fetched: iterating over an answer gives each
    chunk once, in order, across restarts of the server.
    """

    def __init__(
        self,
        url: str,
        agent: str,
        name: str = "default",
        *,
        prefix: str = "agents",
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        base = re.sub(r"^http", "ws", url.rstrip("/"))
        more = urlencode({"_pk": secrets.token_hex(8), **(query or {})})
        self._url = f"{base}/{prefix}/{agent}/{quote(name, safe='')}?{more}"
        self._headers = dict(headers or {})
        self._socket: ClientConnection | None = None
        self._requests: dict[str, _Request] = {}
        self._calls: dict[str, asyncio.Queue[dict[str, Any] | BaseException]] = {}
        self._state_changes: list[asyncio.Queue[Any]] = []
        self._open = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._refusal: Exception | None = None
        self.messages: list[dict[str, Any]] = []  # the conversation, as the server has told it last
        self.state: Any = None
        self.is_recovering = False

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run(), name="outlast client")
        await self._connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    # --- turns -----------------------------------------------------------------------------------

    async def send(
        self,
        message: str | Mapping[str, Any],
        *,
        body: Mapping[str, Any] | None = None,
        client_tools: Sequence[Mapping[str, Any]] | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Say something, and iterate over the chunks of the answer. `TurnFailed` if it ends with an error."""
        given: dict[str, Any] = (
            {"role": "user", "parts": [{"type": "text", "text": message}]}
            if isinstance(message, str)
            else dict(message)
        )
        given.setdefault("id", secrets.token_hex(8))
        content: dict[str, Any] = {**(body or {}), "messages": [given]}
        content["trigger"] = "submit-message"
        if client_tools is not None:
            content["clientTools"] = [dict(each) for each in client_tools]
        request = _Request(request_id or secrets.token_hex(8), None)
        init = {"method": "POST", "body": json.encode(content)}
        request.frame = _frame("cf_agent_use_chat_request", id=request.id, init=init)
        self._requests[request.id] = request
        await self._transmit(request.frame)
        async for chunk in self._chunks(request):
            yield chunk

    async def resume(self, request_id: str) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a request from its first on, whoever has made it."""
        request = _Request(request_id, None)
        self._requests[request_id] = request
        await self._transmit(_frame("cf_agent_stream_resume_ack", id=request_id))
        async for chunk in self._chunks(request):
            yield chunk

    async def _chunks(self, request: _Request) -> AsyncIterator[dict[str, Any]]:
        try:
            while (found := await request.chunks.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            self._requests.pop(request.id, None)

    async def cancel(self, request_id: str) -> None:
        """Stop a turn."""
        await self._transmit(_frame("cf_agent_chat_request_cancel", id=request_id))

    async def clear(self) -> None:
        """Delete the conversation."""
        await self._transmit(_frame("cf_agent_chat_clear"))
        self.messages = []

    async def add_tool_output(
        self, tool_call_id: str, output: Any = None, *, error: str | None = None
    ) -> None:
        """The result of a call that this client has run; the agent goes on with it."""
        state = "output-available" if error is None else "output-error"
        fields: dict[str, Any] = {"toolCallId": tool_call_id, "toolName": "", "state": state}
        fields |= {"output": output} if error is None else {"errorText": error}
        await self._transmit(_frame("cf_agent_tool_result", autoContinue=True, **fields))

    async def add_tool_approval(self, tool_call_id: str, approved: bool) -> None:
        """Allow a call, or do not."""
        await self._transmit(
            _frame(
                "cf_agent_tool_approval",
                toolCallId=tool_call_id,
                approved=approved,
                autoContinue=True,
            )
        )

    # --- calls and state -------------------------------------------------------------------------

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method that is marked with `@rpc`, and wait for its value."""
        value = None
        async for kind, found in self._answers(method, arguments):
            value = found if kind == "done" else value
        return value

    async def stream_call(self, method: str, *arguments: Any) -> AsyncIterator[Any]:
        """Call a method that streams, and iterate over its items."""
        async for kind, found in self._answers(method, arguments):
            if kind == "item":
                yield found

    async def _answers(
        self, method: str, arguments: Sequence[Any]
    ) -> AsyncIterator[tuple[str, Any]]:
        id = secrets.token_hex(8)
        answers: asyncio.Queue[dict[str, Any] | BaseException] = asyncio.Queue()
        self._calls[id] = answers
        try:
            await self._transmit(_frame("rpc", id=id, method=method, args=list(arguments)))
            while True:
                found = await answers.get()
                if isinstance(found, BaseException):
                    raise found
                if not found.get("success"):
                    raise CallFailed(str(found.get("error")))
                is_done = found.get("done", True)
                yield ("done" if is_done else "item"), found.get("result")
                if is_done:
                    return
        finally:
            self._calls.pop(id, None)

    async def set_state(self, state: Any) -> None:
        """Replace the agent's state."""
        self.state = state
        await self._transmit(_frame("cf_agent_state", state=state))

    async def states(self) -> AsyncIterator[Any]:
        """The state as it is, and each change of it by others."""
        changes: asyncio.Queue[Any] = asyncio.Queue()
        self._state_changes.append(changes)
        try:
            yield self.state
            while True:
                yield await changes.get()
        finally:
            self._state_changes.remove(changes)

    # --- the connection --------------------------------------------------------------------------

    async def _connected(self) -> ClientConnection:
        while True:
            if self._refusal is not None:
                raise self._refusal
            if self._socket is not None:
                return self._socket
            await self._open.wait()

    async def _transmit(self, text: str) -> None:
        """Send a frame, now or when the connection is back."""
        from websockets.exceptions import ConnectionClosed

        while True:
            socket = await self._connected()
            try:
                await socket.send(text)
                return
            except ConnectionClosed:
                await asyncio.sleep(0.01)

    async def _run(self) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed, InvalidHandshake

        failures = 0
        while True:
            try:
                async with connect(
                    self._url, additional_headers=self._headers, max_size=None
                ) as socket:
                    await self._greet(socket)
                    failures = 0
                    async for text in socket:
                        if isinstance(text, str):
                            self._hear(json.decode(text))
            except (ConnectionClosed, InvalidHandshake, OSError, TimeoutError) as error:
                code = getattr(getattr(error, "rcvd", None), "code", None)
                if code in TERMINAL:
                    self._refuse(Refused(f"the server closed the connection: {error}"))
                    return
            finally:
                self._socket = None
                self._open.clear()
                self._drop_calls()
            failures += 1
            delay = min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(failures - 1, 20))
            await asyncio.sleep(delay * random.uniform(0.5, 1))

    async def _greet(self, socket: ClientConnection) -> None:
        """Take up whatever was under way: what was asked, or what is left of its answer."""
        for request in tuple(self._requests.values()):
            wanted = request.frame or _frame("cf_agent_stream_resume_ack", id=request.id)
            await socket.send(wanted)
        self._socket = socket
        self._open.set()

    def _refuse(self, error: Exception) -> None:
        self._refusal = error
        self._open.set()
        for request in self._requests.values():
            request.chunks.put_nowait(error)

    def _drop_calls(self) -> None:
        """Nobody knows what became of calls that were on their way."""
        for answers in self._calls.values():
            answers.put_nowait(CallFailed("the connection was lost before the call was answered"))

    def _hear(self, frame: Any) -> None:
        if not isinstance(frame, dict):
            return
        match frame.get("type"):
            case "cf_agent_use_chat_response":
                self._response(frame)
            case "cf_agent_chat_messages":
                self.messages = frame.get("messages", [])
            case "cf_agent_message_updated":
                after = frame.get("message", {})
                self.messages = [
                    after if each.get("id") == after.get("id") else each for each in self.messages
                ]
            case "cf_agent_chat_clear":
                self.messages = []
            case "cf_agent_chat_recovering":
                self.is_recovering = bool(frame.get("recovering"))
            case "cf_agent_state":
                self.state = frame.get("state")
                for changes in self._state_changes:
                    changes.put_nowait(self.state)
            case "cf_agent_stream_resuming":
                self._accept(str(frame.get("id")))
            case "rpc":
                answers = self._calls.get(str(frame.get("id")))
                if answers is not None:
                    answers.put_nowait(frame)

    def _accept(self, id: str) -> None:
        """What is offered is taken, also if nobody follows it here: then nothing is held back."""
        socket = self._socket
        if socket is not None:
            text = _frame("cf_agent_stream_resume_ack", id=id)
            task = asyncio.ensure_future(_sent(socket, text))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _response(self, frame: dict[str, Any]) -> None:
        request = self._requests.get(str(frame.get("id")))
        if request is None:
            return
        request.frame = None  # it was accepted
        seq, body = frame.get("seq"), frame.get("body")
        if frame.get("error"):
            request.chunks.put_nowait(TurnFailed(str(body)))
        elif frame.get("done"):
            request.outcome = frame.get("outcome") or "completed"
            request.chunks.put_nowait(None)
        elif isinstance(seq, int) and isinstance(body, str) and body and seq >= request.next:
            request.next = seq + 1
            request.chunks.put_nowait(json.decode(body))


async def _sent(socket: ClientConnection, text: str) -> None:
    with contextlib.suppress(Exception):
        await socket.send(text)


def _frame(kind: str, **fields: Any) -> str:
    return json.encode({"type": kind, **fields}, "frame")
