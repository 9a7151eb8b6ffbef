"""Handles the frames of one connection, in order of arrival.

A malformed chat request receives an error if its id is readable. Other malformed frames are ignored: they
receive no response and do not close the connection.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from outlast.agent.agent import Agent, parts_of
from outlast.agent.gateway import handle_frame
from outlast.agent.rpc import FinalText, call_method, rpc_methods
from outlast.agent.state.state import State
from outlast.chat.gateway import chat_of, is_chat
from outlast.core import json
from outlast.core.errors import HostStopped, OutlastError, PublicError, RpcRefused
from outlast.core.hooks import call_hook
from outlast.core.text import described
from outlast.host.life.host import Host
from outlast.server.http.error_ids import log_failed_call
from outlast.server.http.unavailable import NOT_STORED, RETRY_AFTER, TEXT
from outlast.server.limits import Limits
from outlast.server.room.room import Room
from outlast.server.socket import frames
from outlast.server.socket.connection import TRY_AGAIN, Connection
from outlast.server.socket.frames import Responses
from outlast.server.socket.long_requests import answered_call, call_id, request_frame, request_id
from outlast.server.socket.requests import (
    MAX_ID,
    ChatRequest,
    RequestTooLarge,
    Unreadable,
    parse_frame,
    too_large,
)

logger = logging.getLogger("outlast.server")


UNUSABLE = "The client's result was not stored."
NOT_ACCEPTED = "The message was not accepted."
TOO_MANY = "Too many messages are waiting for an answer."
AT_ONCE = 0.005  # seconds; a frame within this time arrived together with the previous one


class NotAChatAgent(OutlastError):
    """A client sent a chat frame to an agent that is not a chat agent."""


Handler = Callable[["Socket", dict[str, Any]], Coroutine[Any, Any, None]]


class Socket:
    """Passes the frames of a connection to its agent, activating it for each."""

    def __init__(self, host: Host, room: Room, connection: Connection, limits: Limits) -> None:
        self._host = host
        self._room = room
        self._connection = connection
        self._limits = limits
        self._is_made = (
            False  # once a sub-agent exists and is deleted, a frame does not create it again
        )
        self._calls: set[asyncio.Task[None]] = set()
        self._has_close_hook = False
        self._last_request: str | None = None  # the chat request of the last frame
        self._just_asked: str | None = None  # the same, if this frame arrived together with it

    async def run(self, socket: WebSocket) -> None:
        """Handle all frames until the connection closes."""
        async with self._using() as agent:
            await _call_optional_hook(agent, "on_connect", self._connection)
            self._room.join(self._connection, agent)
            kind: Any = type(agent)
            self._has_close_hook = kind.on_close is not Agent.on_close
        loop = asyncio.get_running_loop()
        while True:
            waits_since = loop.time()
            try:
                message = await socket.receive()
            except (WebSocketDisconnect, RuntimeError):
                return
            if message["type"] == "websocket.disconnect" or self._connection.is_refused:
                return
            text = message.get("text")
            if text is None:
                continue
            is_at_once = loop.time() - waits_since < AT_ONCE
            self._just_asked = self._last_request if is_at_once else None
            self._last_request = None
            if len(text) <= self._limits.body:
                await self._frame(text)
            else:
                await self._long_frame(text)

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[Any]:
        """Activate the agent."""
        address, may_make = self._room.address, not self._is_made
        async with self._host.using(address, may_make=may_make) as hosted:
            agent: Any = hosted
            yield agent
            self._is_made = parts_of(agent).activation.making is None

    async def close(self) -> None:
        """Call `on_close`: the connection is gone."""
        for call in self._calls:
            call.cancel()
        if not self._has_close_hook:
            return
        try:
            async with self._using() as agent:
                await _call_optional_hook(agent, "on_close", self._connection)
        except OutlastError:
            pass
        except Exception:
            logger.exception("%s: on_close raised", self._room.address)

    async def _frame(self, text: str) -> None:
        try:
            frame = json.decode(text)
        except ValueError as error:
            id = _id_of_broken(text)
            if id is None and (call := answered_call(text)) is not None:
                result = {"toolCallId": call, "state": "output-error", "errorText": UNUSABLE}
                return await self._handle(Socket._tool_result, {**result, "autoContinue": True})
            if id is None:
                return await self._other(text)
            failure = Unreadable("The request is not JSON, or it is nested too deeply.")
            failure.__cause__ = error
            return await self._handle(partial(Socket._report_refusal, failure=failure), {"id": id})
        kind = frame.get("type") if isinstance(frame, dict) else None
        handler = _HANDLERS.get(kind) if isinstance(kind, str) else None
        if handler is None:
            return await self._other(text, frame if isinstance(kind, str) else None)
        return await self._handle(handler, frame)

    async def _handle(self, handler: Handler, frame: dict[str, Any]) -> None:
        try:
            await handler(self, frame)
        except (
            NOT_STORED
        ) as error:  # clients reconnect, receive the current state, and send it again
            logger.warning(
                "%s: closing a connection, its client will retry: %s", self._room.address, error
            )
            self._connection.close(TRY_AGAIN, "try again")
        except OutlastError as error:
            logger.warning("%s: refused a frame: %s", self._room.address, error)
        except Exception:
            logger.exception("%s: failed to handle a frame", self._room.address)

    async def _long_frame(self, text: str) -> None:
        """Handle a request that repeats a long history, or reject an oversized frame."""
        fits = len(text) <= self._limits.frame
        # In a thread, because a text can be crafted to be slow to parse, and other clients must not wait.
        found = await asyncio.to_thread(request_frame, text, self._limits.body) if fits else None
        if found is not None and found[0].get("type") == frames.CHAT_REQUEST:
            await self._handle(partial(Socket._request, body=found[1]), found[0])
        elif (id := request_id(text)) is not None:
            most = self._limits.body if fits else self._limits.frame
            refused = RequestTooLarge(too_large(len(text), most))
            await self._handle(partial(Socket._report_refusal, failure=refused), {"id": id})
        elif (id := call_id(text)) is not None:
            self._connection.send(_failed(id, f"The call is too large: {len(text):,} characters."))
        elif (call := answered_call(text)) is not None:
            error = f"The result is too large: {len(text):,} characters."
            result = {"toolCallId": call, "state": "output-error", "errorText": error}
            await self._handle(Socket._tool_result, {**result, "autoContinue": True})
        else:
            logger.warning(
                "%s: ignoring a frame of %d characters, which is too large",
                self._room.address,
                len(text),
            )

    async def _other(self, text: str, frame: dict[str, Any] | None = None) -> None:
        """Pass an unknown frame to a battery, or else to the application."""
        try:
            async with self._using() as agent:
                if frame is not None and await handle_frame(agent, self._connection, frame):
                    return
                await _call_optional_hook(agent, "on_message", self._connection, text)
        except Exception:
            logger.exception("%s: on_message raised", self._room.address)

    # --- state and calls -------------------------------------------------------------------------

    async def _state(self, frame: dict[str, Any]) -> None:
        if "state" not in frame:
            return
        if self._connection.read_only:
            error = "Connection is readonly"
            self._connection.send(frames.frame(frames.STATE_ERROR, error=error))
            return
        try:
            async with self._using() as agent:
                await parts_of(agent)[State].change(frame["state"], self._connection)
        except NOT_STORED as error:
            logger.warning("%s: failed to store a state: %s", self._room.address, error)
            self._connection.send(frames.frame(frames.STATE_ERROR, error=TEXT))
        except OutlastError:
            raise
        except Exception as error:
            logger.info("%s: rejected a state: %s", self._room.address, described(error))
            text = "State update rejected"
            self._connection.send(frames.frame(frames.STATE_ERROR, error=text))

    async def _rpc(self, frame: dict[str, Any]) -> None:
        id, method, arguments = frame.get("id"), frame.get("method"), frame.get("args")
        if not isinstance(id, str) or not isinstance(method, str):
            return
        if not isinstance(arguments, list):
            return
        if len(self._calls) >= self._limits.calls:
            self._connection.send(
                frames.frame(frames.RPC, id=id, success=False, error="Too many calls at once")
            )
            return
        call = asyncio.create_task(self._call(id, method, arguments), name=f"rpc {method}")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, id: str, method: str, arguments: list[Any]) -> None:
        send = self._connection.send
        try:
            async with self._using() as agent:
                marked = rpc_methods(type(agent))
                if method not in marked:
                    known = callable(getattr(type(agent), method, None))
                    text = "is not callable" if known else "does not exist"
                    return send(_failed(id, f"Method {method} {text}"))
                streams = inspect.isasyncgenfunction(marked[method])
                final = "null"
                async for result in call_method(agent, method, json.encode(arguments)):
                    if streams and not isinstance(result, FinalText):
                        send(_result(id, result, done=False))
                    else:
                        final = result
                return send(_result(id, final, done=True))
        except (RpcRefused, PublicError) as error:
            send(_failed(id, str(error)))
        except OutlastError as error:
            logger.warning("%s.%s failed: %s", self._room.address, method, error)
            send(_failed(id, "The call was not made. Try again."))
        except Exception as error:
            send(_failed(id, log_failed_call(self._host, f"{self._room.address}.{method}", error)))
        return None

    # --- chat ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _chatting(self) -> AsyncIterator[Any]:
        """Activate the agent; `NotAChatAgent` if it is not a chat agent."""
        async with self._using() as agent:
            if not is_chat(agent):
                raise NotAChatAgent(f"{self._room.address} is not a chat agent")
            yield agent

    async def _request(self, frame: dict[str, Any], body: dict[str, Any] | None = None) -> None:
        try:
            request = parse_frame(frame, self._limits, body)
        except Unreadable as error:
            await self._report_refusal(frame, failure=error)
            return
        async with self._chatting_or_reporting(request.id) as agent:
            await self._ask(agent, request)
        self._last_request = request.id

    async def _report_refusal(self, frame: dict[str, Any], failure: Exception) -> None:
        """Emit the refusal of a request, and send its client an error if the id is known."""
        id = frame.get("id")
        id = id if isinstance(id, str) and id else None
        async with self._chatting_or_reporting(id) as agent:
            known = id if id is not None and len(id) <= MAX_ID else None
            text = await chat_of(agent).refused(failure, known, "parse")
            # A request that is being answered ends in its own way.
            if id is not None and not chat_of(agent).is_open(id):
                self._fail(id, text)

    @asynccontextmanager
    async def _chatting_or_reporting(self, id: str | None) -> AsyncIterator[Any]:
        """Like `_chatting`, but send an error if the agent is unavailable or cannot store the request."""
        is_entered = False
        try:
            async with self._chatting() as agent:
                is_entered = True
                yield agent
        except HostStopped:
            raise  # the connection is closing, and the client will send it again
        except NOT_STORED as error:
            text = None if id is None else await self._report_not_stored(id, error)
            if text is None:
                raise
            logger.warning(
                "%s: request %s was not stored, its client may retry: %s",
                self._room.address,
                id,
                error,
            )
            self._connection.send(
                Responses(str(id), continuation=False).unavailable(text, RETRY_AFTER)
            )
        except Exception:
            if not is_entered and id is not None:
                self._fail(id, NOT_ACCEPTED)
            raise

    async def _report_not_stored(self, id: str, error: Exception) -> str | None:
        """Emit that a request was not stored, and return the error message for its client.

        None if it may have been stored after all. The agent that failed to store it was discarded.
        """
        try:
            async with self._chatting() as agent:
                if await chat_of(agent).entry(id) is not None:
                    return None
                return str(await chat_of(agent).refused(error, id, "persist", default=TEXT))
        except OutlastError:
            return None

    def _fail(self, id: str, text: str) -> None:
        self._connection.send(Responses(id, continuation=False).error(text))

    async def _ask(self, agent: Any, request: ChatRequest) -> None:
        chat, connection = self._room.chat, self._connection
        gateway = chat_of(agent)
        if request.problem is not None:
            await self._report_refusal({"id": request.id}, failure=RequestTooLarge(request.problem))
            return
        if gateway.waiting >= self._limits.pending and not gateway.is_open(request.id):
            text = await gateway.refused(RequestTooLarge(TOO_MANY), request.id, "persist")
            self._fail(request.id, text)
            return
        known = chat.owners.get(request.id)
        chat.owners[request.id] = known or connection
        try:
            entry, accepted = await gateway.ask(
                request.id,
                request.messages,
                regenerates=request.regenerates,
                body=request.body,
                client_tools=request.client_tools,
                concurrency=agent.message_concurrency,
                principal=connection.principal,
            )
        except BaseException as error:  # including the discarding of the agent
            if known is None:
                chat.owners.pop(request.id, None)
            if not isinstance(error, Exception) or isinstance(error, NOT_STORED):
                raise
            logger.warning("%s: refused a message: %s", self._room.address, described(error))
            text = await gateway.refused(error, request.id, "persist", default=NOT_ACCEPTED)
            self._fail(request.id, text)
            return
        if entry is None:  # dropped: nothing of it was stored
            chat.owners.pop(request.id, None)
            chat.send_transcript(connection, gateway)
            responses = Responses(request.id, continuation=False)
            connection.send(responses.done(outcome="skipped", message_ids=request.message_ids))
        elif not accepted and known is not connection:  # send its progress so far
            if entry.ended_at is not None:
                chat.owners.pop(request.id, None)
            await chat.resume(connection, request.id, gateway)

    async def _set_messages(self, frame: dict[str, Any]) -> None:
        """Ignore `setMessages` of a client: only the server changes the transcript."""
        if not self._room.has_ignored_messages:
            self._room.has_ignored_messages = True
            logger.info(
                "%s: ignoring a client's list of messages. Pass syncMessagesToServer: false to"
                " useAgentChat, and change messages on the server.",
                self._room.address,
            )

    async def _cancel(self, frame: dict[str, Any]) -> None:
        id = frame.get("id")
        if isinstance(id, str):
            async with self._chatting() as agent:
                await agent.cancel_chat(id, "The user stopped it.")

    async def _clear(self, frame: dict[str, Any]) -> None:
        async with self._chatting() as agent:
            self._room.chat.clearing = self._connection
            try:
                await agent.clear_messages()
            finally:
                self._room.chat.clearing = None

    async def _resume_request(self, frame: dict[str, Any]) -> None:
        probe = frame.get("probeId")
        async with self._chatting() as agent:
            known = probe if isinstance(probe, str) else None
            asked = self._just_asked
            self._room.chat.probe(self._connection, known, chat_of(agent), just_asked=asked)

    async def _resume_ack(self, frame: dict[str, Any]) -> None:
        id = frame.get("id")
        if isinstance(id, str):
            async with self._chatting() as agent:
                await self._room.chat.resume(self._connection, id, chat_of(agent))

    async def _tool_result(self, frame: dict[str, Any]) -> None:
        id = frame.get("toolCallId")
        if not isinstance(id, str):
            return
        error = frame.get("errorText")
        is_error = frame.get("state") == "output-error"
        tools = frame.get("clientTools")
        async with self._chatting() as agent:
            before = chat_of(agent).last_seq
            auto_continue = frame.get("autoContinue") is True
            try:
                is_taken = await agent.add_tool_output(
                    id,
                    frame.get("output"),
                    error_text=(
                        (error if isinstance(error, str) else "Tool execution denied by user")
                        if is_error
                        else None
                    ),
                    auto_continue=auto_continue,
                    client_tools=tools if isinstance(tools, list) else None,
                )
            except (TypeError, ValueError) as problem:  # too deep, too large, or not of the schema
                text = str(problem)[:200]
                logger.warning("%s: refused a tool result: %s", self._room.address, text)
                is_taken = await agent.add_tool_output(
                    id, error_text=UNUSABLE, auto_continue=auto_continue
                )
            if is_taken:
                self._own_continuation(agent, before)

    async def _tool_approval(self, frame: dict[str, Any]) -> None:
        id, approved = frame.get("toolCallId"), frame.get("approved")
        if isinstance(id, str) and isinstance(approved, bool):
            async with self._chatting() as agent:
                before = chat_of(agent).last_seq
                auto_continue = frame.get("autoContinue") is True
                if await agent.add_tool_approval(id, approved, auto_continue=auto_continue):
                    self._own_continuation(agent, before)

    def _own_continuation(self, agent: Any, before: int) -> None:
        """Announce an automatic continuation to the connection that gave the last answer."""
        for entry in chat_of(agent).continuations(before):
            self._room.chat.announce(entry.id, self._connection)


_HANDLERS: dict[str, Handler] = {
    frames.STATE: Socket._state,
    frames.RPC: Socket._rpc,
    frames.CHAT_REQUEST: Socket._request,
    frames.MESSAGES: Socket._set_messages,
    frames.CANCEL: Socket._cancel,
    frames.CLEAR: Socket._clear,
    frames.RESUME_REQUEST: Socket._resume_request,
    frames.RESUME_ACK: Socket._resume_ack,
    frames.TOOL_RESULT: Socket._tool_result,
    frames.TOOL_APPROVAL: Socket._tool_approval,
}


def _id_of_broken(text: str) -> str | None:
    """Return the id of a chat request that is not valid JSON, if the text contains one."""
    try:
        return request_id(text)
    except ValueError:
        return None


def _result(id: str, result: str, *, done: bool) -> str:
    """Return a result frame; `result` is JSON."""
    flag = "true" if done else "false"
    head = f'{{"type":"rpc","id":{json.encode(id)},"success":true,"done":{flag}'
    return f'{head},"result":{result}}}'


def _failed(id: str, error: str) -> str:
    return frames.frame(frames.RPC, id=id, success=False, error=error)


async def _call_optional_hook(agent: Any, name: str, *arguments: Any) -> None:
    """Call a hook of the application, if it has one."""
    hook = getattr(agent, name, None)
    if hook is not None:
        await call_hook(hook, *arguments)
