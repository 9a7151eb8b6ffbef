"""One connection to one agent, which comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

from outlast.core import json

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

FIRST_RETRY, LAST_RETRY = 0.1, 5.0  # seconds
CLOSING = 2.0  # seconds that a server has to say goodbye
TERMINAL = {1008, *range(4000, 5000)}  # close codes after which nobody comes back
NOT_NOW = {408, 425, 429}  # of the answers to a handshake that begin with 4, those that may change
NOT_YOU = {401, 403}  # those that mean this client, also when it was let in before
UNANSWERED = {"input-streaming", "input-available", "approval-requested"}  # states of a call


class Refused(Exception):
    """The server does not want this client, and said so for good."""


class Closed(Exception):
    """The client was closed before that was over."""


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
        self.awaits_replay = False  # what is live by then comes too early


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
        self._requests: list[_Request] = []
        self._answers_given: dict[
            str, str
        ] = {}  # frames that may have been lost, by what they are about
        self._calls: dict[str, asyncio.Queue[dict[str, Any] | BaseException]] = {}
        self._state_changes: list[asyncio.Queue[Any]] = []
        self._offered: dict[str, None] = {}  # turns that are under way, and nobody follows here
        self._offers: list[asyncio.Queue[str | BaseException]] = []
        self._open = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._refusal: Exception | None = None
        self.messages: list[dict[str, Any]] = []  # the conversation, as the server has told it last
        self.state: Any = None
        self.is_recovering = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now; a lost one is made again."""
        return self._socket is not None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run(), name="outlast client")
        try:
            await self._connected()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        if self._refusal is None:
            self._end(Closed("the client was closed"))

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
        async with aclosing(self._followed(request, request.frame)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def resume(self, request_id: str) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a request from its first on, whoever has made it."""
        request = _Request(request_id, None)
        request.awaits_replay = True
        text = _frame("cf_agent_stream_resume_ack", id=request_id)
        async with aclosing(self._followed(request, text)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def offers(self) -> AsyncIterator[str]:
        """The ids of turns that nobody follows here, as they come, until the client is closed: `resume` them.

        Those that were under way when it came, those of others, and those that go on after an approval.
        """
        offers: asyncio.Queue[str | BaseException] = asyncio.Queue()
        for id in self._offered:
            offers.put_nowait(id)
        self._offers.append(offers)
        try:
            while not isinstance(found := await offers.get(), Closed):
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            self._offers.remove(offers)

    def _offer(self, id: str) -> None:
        if id not in self._offered and not self._followers({"id": id}):
            self._offered[id] = None
            for offers in self._offers:
                offers.put_nowait(id)

    async def _followed(self, request: _Request, text: str) -> AsyncGenerator[dict[str, Any]]:
        self._requests.append(request)
        try:
            await self._transmit(text)
            while (found := await request.chunks.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            self._requests.remove(request)

    async def cancel(self, request_id: str) -> None:
        """Stop a turn."""
        await self._answer(request_id, _frame("cf_agent_chat_request_cancel", id=request_id))

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
        text = _frame("cf_agent_tool_result", autoContinue=True, **fields)
        await self._answer(tool_call_id, text)

    async def add_tool_approval(self, tool_call_id: str, approved: bool) -> None:
        """Allow a call, or do not."""
        fields = {"toolCallId": tool_call_id, "approved": approved}
        text = _frame("cf_agent_tool_approval", autoContinue=True, **fields)
        await self._answer(tool_call_id, text)

    async def _answer(self, about: str, text: str) -> None:
        """Send what counts once, and again after a lost connection until it is seen to have arrived."""
        self._answers_given[about] = text
        await self._transmit(text)

    # --- calls and state -------------------------------------------------------------------------

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method that is marked with `@rpc`, and wait for its value."""
        value = None
        async with aclosing(self._answers(method, arguments)) as answers:
            async for kind, found in answers:
                value = found if kind == "done" else value
        return value

    async def stream_call(self, method: str, *arguments: Any) -> AsyncIterator[Any]:
        """Call a method that streams, and iterate over its items."""
        async with aclosing(self._answers(method, arguments)) as answers:
            async for kind, found in answers:
                if kind == "item":
                    yield found

    async def _answers(
        self, method: str, arguments: Sequence[Any]
    ) -> AsyncGenerator[tuple[str, Any]]:
        from websockets.exceptions import ConnectionClosed

        id = secrets.token_hex(8)
        text = _frame("rpc", id=id, method=method, args=list(arguments))
        answers: asyncio.Queue[dict[str, Any] | BaseException] = asyncio.Queue()
        socket = await self._connected()
        self._calls[id] = answers
        try:
            with contextlib.suppress(ConnectionClosed):  # and nobody knows whether it was made
                await socket.send(text)
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
        await self._transmit(_frame("cf_agent_state", state=state))
        self.state = state

    async def states(self) -> AsyncIterator[Any]:
        """The state as it is, and each change of it by others, until the client is closed."""
        changes: asyncio.Queue[Any] = asyncio.Queue()
        self._state_changes.append(changes)
        try:
            await self._connected()
            yield self.state
            while not isinstance(found := await changes.get(), Closed):
                if isinstance(found, BaseException):
                    raise found
                yield found
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

        headers, failures, was_here = self._headers, 0, False
        while True:
            try:
                async with connect(
                    self._url, additional_headers=headers, max_size=None, close_timeout=CLOSING
                ) as socket:
                    self.is_recovering = False  # or it is told
                    async for text in socket:
                        await self._hear(socket, text)
                        if self._socket is not None:
                            failures, was_here = 0, True
            except (ConnectionClosed, InvalidHandshake, OSError, TimeoutError) as error:
                if _is_final(error, was_here=was_here):
                    self._end(Refused(f"the server refuses this client: {error}"))
                    return
            except Exception as error:  # a URL that is none, say: trying again does not help
                self._end(error)
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
        for request in tuple(self._requests):
            request.awaits_replay = request.frame is None
            wanted = request.frame or _frame("cf_agent_stream_resume_ack", id=request.id)
            await socket.send(wanted)
        for text in tuple(self._answers_given.values()):
            await socket.send(text)
        self._socket = socket
        self._open.set()

    def _end(self, error: Exception) -> None:
        """It is over for good: whoever waits for anything is told."""
        self._refusal = error
        self._open.set()
        for request in self._requests:
            request.chunks.put_nowait(error)
        for waiting in (*self._calls.values(), *self._state_changes, *self._offers):
            waiting.put_nowait(error)

    def _drop_calls(self) -> None:
        """Nobody knows what became of calls that were on their way."""
        for answers in self._calls.values():
            answers.put_nowait(CallFailed("the connection was lost before the call was answered"))

    async def _hear(self, socket: ClientConnection, text: str | bytes) -> None:
        try:
            frame = json.decode(text) if isinstance(text, str) else None
        except ValueError:  # what an application sends may be anything
            return
        if not isinstance(frame, dict):
            return
        match frame.get("type"):
            case "cf_agent_identity":
                if not frame.get("stateFollows"):
                    await self._greet(socket)
            case "cf_agent_use_chat_response":
                self._response(frame)
            case "cf_agent_chat_messages":
                self.messages = frame.get("messages", [])
                self._arrived(self.messages)
            case "cf_agent_message_updated":
                after = frame.get("message", {})
                self.messages = [
                    after if each.get("id") == after.get("id") else each for each in self.messages
                ]
                self._arrived([after])
            case "cf_agent_chat_clear":
                self.messages = []
            case "cf_agent_chat_recovering":
                self.is_recovering = bool(frame.get("recovering"))
            case "cf_agent_state":
                self.state = frame.get("state")
                for changes in self._state_changes:
                    changes.put_nowait(self.state)
                if self._socket is None:
                    await self._greet(socket)
            case "cf_agent_stream_resuming":
                await self._accept(socket, str(frame.get("id")))
            case "cf_agent_stream_pending":
                self._offer(str(frame.get("id")))
                for request in self._followers(frame):
                    request.awaits_replay = False  # it has not begun: what comes is all of it
            case "rpc":
                answers = self._calls.get(str(frame.get("id")))
                if answers is not None:
                    answers.put_nowait(frame)

    def _followers(self, frame: dict[str, Any]) -> list[_Request]:
        return [request for request in self._requests if request.id == frame.get("id")]

    def _arrived(self, messages: Sequence[dict[str, Any]]) -> None:
        """Calls that are answered here need no answer any more."""
        for message in messages if self._answers_given else ():
            for part in message.get("parts", ()):
                if part.get("state") not in UNANSWERED:
                    self._answers_given.pop(part.get("toolCallId"), None)

    async def _accept(self, socket: ClientConnection, id: str) -> None:
        """What is offered is taken, also if nobody follows it here: then nothing is held back."""
        self._offer(id)
        for request in self._followers({"id": id}):
            request.awaits_replay = True
        await socket.send(_frame("cf_agent_stream_resume_ack", id=id))

    def _response(self, frame: dict[str, Any]) -> None:
        if not frame.get("done"):
            self._offer(str(frame.get("id")))
        else:
            self._offered.pop(str(frame.get("id")), None)
            self._answers_given.pop(str(frame.get("id")), None)  # what is over is not cancelled
        for request in self._followers(frame):
            self._follow(request, frame)

    def _follow(self, request: _Request, frame: dict[str, Any]) -> None:
        request.frame = None  # it was accepted
        seq, body = frame.get("seq"), frame.get("body")
        if frame.get("error"):
            request.chunks.put_nowait(TurnFailed(str(body)))
        elif request.awaits_replay and not frame.get("replay"):
            return  # all of it is about to come, from the first chunk on
        elif frame.get("done"):
            request.chunks.put_nowait(None)
        elif isinstance(seq, int) and isinstance(body, str) and body and seq >= request.next:
            request.next = seq + 1
            request.chunks.put_nowait(json.decode(body))
        request.awaits_replay = False


def _is_final(error: Exception, *, was_here: bool) -> bool:
    """Whether the server does not want this client. A proxy whose server is away says less than that."""
    code = getattr(getattr(error, "rcvd", None), "code", None)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        return code in TERMINAL
    return status in NOT_YOU or (not was_here and 400 <= status < 500 and status not in NOT_NOW)


def _frame(kind: str, **fields: Any) -> str:
    return json.encode({"type": kind, **fields}, "frame")
