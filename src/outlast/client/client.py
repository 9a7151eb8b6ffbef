"""A client of one agent, which reconnects by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

from outlast.client.connection import Connection
from outlast.client.errors import CallFailed, Closed, MessageTooLarge, Refused
from outlast.client.fetcher import Fetcher
from outlast.client.outgoing import Limits, OutgoingFrame, frame
from outlast.client.request import Request, RetryLater
from outlast.client.transcript import Transcript, unanswered
from outlast.core import json

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

logger = logging.getLogger("outlast.client")


class Client:
    """Talks to one agent.

    ```python no-run
    from outlast.client import Client

    async with Client("http://localhost:8000", "assistant", "alice") as alice:
        async for chunk in alice.send("Hello"):
            print(chunk)
        total = await alice.call("add", 1, 2)
    ```

    It restores a lost connection and fetches what it missed: iterating over an answer yields each chunk
    once, in order, across restarts of the server.
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
        base, path = url.rstrip("/"), f"/{prefix}/{agent}/{quote(name, safe='')}"
        more = urlencode({"_pk": secrets.token_hex(8), "_delta": "1", **(query or {})})
        address = f"{re.sub(r'^http', 'ws', base)}{path}?{more}"
        self._connection = Connection(address, headers or {}, self._handle, self._drop_calls)
        self._fetcher = Fetcher(base, path, query or {}, headers or {})
        self._requests: list[Request] = []
        self._answers_given: dict[str, OutgoingFrame] = {}  # that may have been lost
        self._calls: dict[str, asyncio.Queue[dict[str, Any] | BaseException]] = {}
        self._state_changes: list[asyncio.Queue[Any]] = []
        self._offered: dict[str, None] = {}  # running turns that no caller follows
        self._offers: list[asyncio.Queue[str | BaseException]] = []
        self._running: asyncio.Task[None] | None = None
        self._refetching: asyncio.Task[None] | None = None
        self._transcript = Transcript()
        self._transcript_frames = 0
        self.state: Any = None
        self.is_recovering = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now. A lost one is restored."""
        return self._socket is not None

    @property
    def _socket(self) -> ClientConnection | None:
        return self._connection.socket

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The known conversation: its newest messages, and those that `load_earlier` added."""
        return self._transcript.messages

    @property
    def has_earlier(self) -> bool:
        """Whether the server has messages older than the first of `messages`."""
        return self._transcript.has_earlier

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run(), name="outlast client")
        try:
            await self._connection.connected()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = {task for task in (self._running, self._refetching) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._fetcher.close()
        self._end(Closed("the client was closed"))

    async def _run(self) -> None:
        """Run until the server refuses this client for good."""
        self._end(await self._connection.run())

    def _end(self, error: Exception) -> None:
        """End for good: notify everything that waits, once."""
        if self._connection.end(error):
            for request in self._requests:
                request.chunks.put_nowait(error)
            for waiting in (*self._calls.values(), *self._state_changes, *self._offers):
                waiting.put_nowait(error)

    # --- turns -----------------------------------------------------------------------------------

    async def send(
        self,
        message: str | Mapping[str, Any],
        *,
        body: Mapping[str, Any] | None = None,
        client_tools: Sequence[Mapping[str, Any]] | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Send a message, and iterate over the chunks of the answer. `TurnFailed` if it ends with an error.

        `MessageTooLarge`, which is a `TurnFailed`, if the server does not accept a message of this size.
        """
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
        request = Request(request_id or secrets.token_hex(8))
        request.asks = _request_frame(request, content)
        async with aclosing(self._followed(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def resume(self, request_id: str) -> AsyncIterator[dict[str, Any]]:
        """Iterate over the chunks of a request from its first one, whoever made the request."""
        async with aclosing(self._followed(Request(request_id))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def offers(self) -> AsyncIterator[str]:
        """Iterate over the ids of turns that no caller follows, until the client is closed: `resume` them.

        These are turns that were running on connect, turns of other clients, and continuations after an
        approval.
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
        if id not in self._offered and not self._followers(id):
            self._offered[id] = None
            for offers in self._offers:
                offers.put_nowait(id)

    async def _followed(self, request: Request) -> AsyncGenerator[dict[str, Any]]:
        if self._connection.refusal is not None:
            raise self._connection.refusal
        self._requests.append(request)
        try:
            await self._announce_if_connected(request)
            while (found := await request.chunks.get()) is not None:
                if isinstance(found, RetryLater):
                    await asyncio.sleep(found.seconds)
                    if request.asks is not None:
                        await self._announce_if_connected(request)
                    continue
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            self._requests.remove(request)

    async def cancel(self, request_id: str) -> None:
        """Cancel a turn."""
        await self._answer(request_id, frame("cf_agent_chat_request_cancel", id=request_id))

    async def add_tool_output(
        self, tool_call_id: str, output: Any = None, *, error: str | None = None
    ) -> None:
        """Send the result of a call that this client ran; the agent continues with it."""
        state = "output-available" if error is None else "output-error"
        fields: dict[str, Any] = {"toolCallId": tool_call_id, "toolName": "", "state": state}
        fields |= {"output": output} if error is None else {"errorText": error}
        text = frame("cf_agent_tool_result", autoContinue=True, **fields)
        await self._answer(tool_call_id, text, is_new=True)

    async def add_tool_approval(self, tool_call_id: str, approved: bool) -> None:
        """Approve or deny a call."""
        fields = {"toolCallId": tool_call_id, "approved": approved}
        text = frame("cf_agent_tool_approval", autoContinue=True, **fields)
        await self._answer(tool_call_id, text)

    async def _answer(self, about: str, text: str, *, is_new: bool = False) -> None:
        """Send an answer that counts once, and repeat it after a lost connection until it has arrived."""

        def forget(_: MessageTooLarge) -> None:
            self._answers_given.pop(about, None)

        out = OutgoingFrame(
            f"answer {about}", text, forget, body=len(text.encode()) if is_new else 0
        )
        self._answers_given[about] = out
        await self._connection.transmit(out)

    # --- the conversation ------------------------------------------------------------------------

    async def clear(self) -> None:
        """Delete the conversation."""
        await self._connection.transmit(OutgoingFrame("clear", frame("cf_agent_chat_clear")))
        self._transcript.clear()

    async def load_earlier(self) -> list[dict[str, Any]]:
        """Fetch messages older than the first of `messages`, and return those that were added."""
        await self._connection.connected()
        if not self.has_earlier or not self.messages:
            return []
        before = str(self.messages[0].get("id"))
        older, has_earlier = await self._fetcher.messages(before)
        return self._transcript.prepend(older, before=before, has_earlier=has_earlier)

    async def content(self, reference: Mapping[str, Any]) -> Any:
        """Fetch a value that the server left out because of its size.

        `reference` is the `output` of a tool part with the type `outlast-reference`: returns the JSON
        value. Or it is a file part: returns the bytes.
        """
        await self._connection.connected()
        return await self._fetcher.content(reference)

    def _show(self, received: dict[str, Any]) -> None:
        """Handle a transcript frame: the newest messages, or the changes to them."""
        shown = received.get("messages", [])
        self._transcript_frames += 1
        if "after" not in received:
            self._transcript.show(shown, has_earlier=bool(received.get("earlier")))
        elif not self._transcript.show_after(received["after"], shown) and not self._is_refetching:
            self._refetching = asyncio.create_task(self._refetch(), name="outlast transcript")
        self._arrived(shown)
        if not received.get("connect"):
            self._connection.progress()

    @property
    def _is_refetching(self) -> bool:
        return self._refetching is not None and not self._refetching.done()

    async def _refetch(self) -> None:
        """Fetch the newest messages. If the transcript changed meanwhile, fetch them once more."""
        frames = -1
        try:
            while frames != self._transcript_frames:
                frames = self._transcript_frames
                shown, has_earlier = await self._fetcher.messages()
        except (CallFailed, Refused) as error:
            logger.warning("cannot fetch the messages, reconnecting: %s", error)
            if self._socket is not None:
                await self._socket.close()
            return
        self._transcript.show(shown, has_earlier=has_earlier)
        self._arrived(shown)

    # --- calls and state -------------------------------------------------------------------------

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method that is marked with `@rpc`, and return its result."""
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
        text = frame("rpc", id=id, method=method, args=list(arguments))
        answers: asyncio.Queue[dict[str, Any] | BaseException] = asyncio.Queue()

        def refuse(error: MessageTooLarge) -> None:
            answers.put_nowait(CallFailed(str(error)))

        socket = await self._connection.connected()
        self._calls[id] = answers
        try:
            with contextlib.suppress(ConnectionClosed):  # whether it was made is unknown
                await self._connection.put(socket, OutgoingFrame(id, text, refuse))
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
        await self._connection.transmit(
            OutgoingFrame("state", frame("cf_agent_state", state=state))
        )
        self.state = state

    async def states(self) -> AsyncIterator[Any]:
        """Iterate over the state: the current one, and each change by others, until the client is closed."""
        changes: asyncio.Queue[Any] = asyncio.Queue()
        self._state_changes.append(changes)
        try:
            await self._connection.connected()
            yield self.state
            while not isinstance(found := await changes.get(), Closed):
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            self._state_changes.remove(changes)

    # --- the connection --------------------------------------------------------------------------

    async def _greet(self, socket: ClientConnection) -> None:
        """Resume after connecting: repeat open requests, and ask for the rest of running answers."""
        done: set[Request | OutgoingFrame] = set()
        while owed := [
            each for each in self._owed() if each not in done
        ]:  # including requests made meanwhile
            for each in owed:
                done.add(each)
                if isinstance(each, Request):
                    await self._announce(socket, each)
                else:
                    await self._connection.put(socket, each)
        self._connection.open(socket)

    def _owed(self) -> list[Request | OutgoingFrame]:
        return [*self._requests, *self._answers_given.values()]

    async def _announce_if_connected(self, request: Request) -> None:
        """Announce a request now if connected; otherwise it is sent after connecting."""
        from websockets.exceptions import ConnectionClosed

        if self._socket is not None:
            with contextlib.suppress(ConnectionClosed):
                await self._announce(self._socket, request)

    async def _announce(self, socket: ClientConnection, request: Request) -> None:
        """Send a request for a turn, or for the rest of its answer."""
        request.awaits_replay = request.asks is None
        if request.asks is None:
            await socket.send(frame("cf_agent_stream_resume_ack", id=request.id))
        elif not request.is_refused:
            await self._connection.put(socket, request.asks)

    def _drop_calls(self) -> None:
        """Fail the calls that were in flight: their outcome is unknown."""
        for answers in self._calls.values():
            answers.put_nowait(CallFailed("the connection was lost before the call returned"))

    async def _handle(self, socket: ClientConnection, text: str | bytes) -> None:
        try:
            received = json.decode(text) if isinstance(text, str) else None
        except ValueError:  # an application may send anything
            return
        if not isinstance(received, dict):
            return
        match received.get("type"):
            case "cf_agent_identity":
                self._connection.limits = Limits.of(received)
                self.is_recovering = False  # unless the server says so
                if not received.get("stateFollows"):
                    await self._greet(socket)
            case "cf_agent_use_chat_response":
                self._response(received)
            case "cf_agent_chat_messages":
                self._show(received)
            case "cf_agent_message_updated":
                after = received.get("message", {})
                self._transcript.update(after)
                self._arrived([after])
            case "cf_agent_chat_clear":
                self._transcript.clear()
            case "cf_agent_chat_recovering":
                self.is_recovering = bool(received.get("recovering"))
            case "cf_agent_state":
                await self._handle_state(socket, received.get("state"))
            case "cf_agent_stream_resuming":
                await self._accept(socket, str(received.get("id")))
            case "cf_agent_stream_pending":
                self._offer(str(received.get("id")))
                for request in self._followers(received.get("id")):
                    request.awaits_replay = False  # it has not started, so nothing is missing
            case "rpc":
                self._handle_result(received)

    async def _handle_state(self, socket: ClientConnection, state: Any) -> None:
        self.state = state
        for changes in self._state_changes:
            changes.put_nowait(state)
        if self._socket is None:  # the first one is part of connecting
            await self._greet(socket)

    def _handle_result(self, received: dict[str, Any]) -> None:
        answers = self._calls.get(str(received.get("id")))
        if answers is not None:
            self._connection.answered(str(received.get("id")))
            answers.put_nowait(received)

    def _followers(self, id: object) -> list[Request]:
        return [request for request in self._requests if request.id == id]

    def _arrived(self, messages: Sequence[dict[str, Any]]) -> None:
        """Settle the answers to calls that have a result in these messages."""
        for message in messages if self._answers_given else ():
            for part in message.get("parts", ()):
                if not unanswered(part):
                    self._settle(part.get("toolCallId"))

    def _settle(self, about: object) -> None:
        """Forget an answer that has arrived or is no longer needed."""
        given = self._answers_given.pop(str(about), None)
        if given is not None:
            self._connection.answered(given.about)

    async def _accept(self, socket: ClientConnection, id: str) -> None:
        """Accept an offered stream even if no caller follows it, so that the server holds nothing back."""
        self._offer(id)
        for request in self._followers(id):
            request.awaits_replay = True
        await socket.send(frame("cf_agent_stream_resume_ack", id=id))

    def _response(self, received: dict[str, Any]) -> None:
        id = str(received.get("id"))
        if not received.get("done"):
            self._offer(id)
        else:
            self._offered.pop(id, None)
            self._settle(id)  # an ended turn needs no cancel
        followers = self._followers(id)
        is_news = [request.hear(received) for request in followers]
        if any(is_news) or (not followers and not received.get("replay")):
            self._connection.answered(id)


def _request_frame(request: Request, content: dict[str, Any]) -> OutgoingFrame:
    """Return the frame that requests a turn."""
    text = json.encode(content)
    asks = frame("cf_agent_use_chat_request", id=request.id, init={"method": "POST", "body": text})
    message = len(json.encode(content["messages"][0]).encode())
    return OutgoingFrame(request.id, asks, request.refuse, body=len(text.encode()), message=message)
