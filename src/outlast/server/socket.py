"""One connection's frames, in the order in which they arrive.

A frame that makes no sense is ignored: it is neither answered nor a reason to close.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from outlast.agent.agent import Agent
from outlast.agent.rpc import FinalText, answers, rpc_methods
from outlast.core import json
from outlast.core.errors import OutlastError, RpcRefused
from outlast.core.text import described
from outlast.host.host import Host
from outlast.server import frames
from outlast.server.connection import Connection
from outlast.server.limits import Limits
from outlast.server.requests import Asked, asked
from outlast.server.room import Room

logger = logging.getLogger("outlast.server")


class NotChatting(OutlastError):
    """A frame of a chat was sent to an agent that has none."""


Handler = Callable[["Socket", dict[str, Any]], Coroutine[Any, Any, None]]


class Socket:
    """What a connection asks of its agent, which is woken by each frame."""

    def __init__(self, host: Host, room: Room, connection: Connection, limits: Limits) -> None:
        self._host = host
        self._room = room
        self._connection = connection
        self._limits = limits
        self._calls: set[asyncio.Task[None]] = set()
        self._tells_close = False

    async def run(self, socket: WebSocket) -> None:
        """From the first frame to the last."""
        async with self._host.using(self._room.address) as agent:
            await _called(agent, "on_connect", self._connection)
            self._room.join(self._connection, agent)
            kind: Any = type(agent)
            self._tells_close = kind.on_close is not Agent.on_close
        while True:
            try:
                message = await socket.receive()
            except (WebSocketDisconnect, RuntimeError):
                return
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is not None and len(text) <= self._limits.frame:
                await self._frame(text)

    async def left(self) -> None:
        """The connection is gone."""
        for call in self._calls:
            call.cancel()
        if not self._tells_close:
            return
        try:
            async with self._host.using(self._room.address) as agent:
                await _called(agent, "on_close", self._connection)
        except OutlastError:
            pass
        except Exception:
            logger.exception("%s: on_close raised", self._room.address)

    async def _frame(self, text: str) -> None:
        try:
            frame = json.decode(text)
        except ValueError:
            return await self._other(text)
        kind = frame.get("type") if isinstance(frame, dict) else None
        handler = _HANDLERS.get(kind) if isinstance(kind, str) else None
        if handler is None:
            return await self._other(text)
        try:
            await handler(self, frame)
        except OutlastError as error:
            logger.warning("%s: a frame was refused: %s", self._room.address, error)
        except Exception:
            logger.exception("%s: a frame could not be handled", self._room.address)
        return None

    async def _other(self, text: str) -> None:
        """What the protocol does not know is the application's."""
        try:
            async with self._host.using(self._room.address) as agent:
                await _called(agent, "on_message", self._connection, text)
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
            async with self._host.using(self._room.address) as agent:
                await agent._change_state(frame["state"], self._connection)  # type: ignore[attr-defined]
        except OutlastError:
            raise
        except Exception as error:
            logger.info("%s: a state was refused: %s", self._room.address, described(error))
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
            async with self._host.using(self._room.address) as agent:
                marked = rpc_methods(type(agent))
                if method not in marked:
                    known = callable(getattr(type(agent), method, None))
                    text = "is not callable" if known else "does not exist"
                    return send(_failed(id, f"Method {method} {text}"))
                streams = inspect.isasyncgenfunction(marked[method])
                final = "null"
                async for result in answers(agent, method, json.encode(arguments)):
                    if streams and not isinstance(result, FinalText):
                        send(_result(id, result, done=False))
                    else:
                        final = result
                return send(_result(id, final, done=True))
        except RpcRefused as error:
            send(_failed(id, str(error)))
        except OutlastError as error:
            logger.warning("%s.%s failed: %s", self._room.address, method, error)
            send(_failed(id, "The call could not be made; try again."))
        except Exception as error:  # the method's own words
            send(_failed(id, str(error)))
        return None

    # --- chat ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _chatting(self) -> AsyncIterator[Any]:
        """The agent, in memory; `NotChatting` if it is none for chats."""
        async with self._host.using(self._room.address) as agent:
            if not hasattr(agent, "_serving"):
                raise NotChatting(f"{self._room.address} is not a chat agent")
            yield agent

    async def _request(self, frame: dict[str, Any]) -> None:
        request = asked(frame, self._limits)
        if request is not None:
            async with self._chatting() as agent:
                await self._ask(agent, request)

    async def _ask(self, agent: Any, request: Asked) -> None:
        chat, connection = self._room.chat, self._connection
        problem, waiting = request.problem, agent._inbox
        if len(waiting.open) >= self._limits.pending and waiting.open_one(request.id) is None:
            problem = problem or "Too many messages wait for an answer."
        if problem is not None:
            responses = frames.Responses(request.id, continuation=False)
            connection.send(responses.error(problem))
            return
        known = chat.owners.get(request.id)
        chat.owners[request.id] = known or connection
        try:
            entry, accepted = await agent._serving.ask(
                request.id,
                request.messages,
                regenerates=request.regenerates,
                body=request.body,
                client_tools=request.client_tools,
                concurrency=agent.message_concurrency,
                principal=connection.principal,
            )
        except (OutlastError, ValueError, TypeError) as error:
            if known is None:
                chat.owners.pop(request.id, None)
            responses = frames.Responses(request.id, continuation=False)
            connection.send(responses.error("The message could not be accepted."))
            logger.warning("%s: a message was refused: %s", self._room.address, error)
            return
        if entry is None:  # dropped: nothing of it is kept
            chat.owners.pop(request.id, None)
            connection.send(frames.messages(agent._serving.shown()))
            responses = frames.Responses(request.id, continuation=False)
            connection.send(responses.done(outcome="skipped", message_ids=request.message_ids))
        elif not accepted and known is not connection:  # here is what has come of it so far
            if entry.ended_at is not None:
                chat.owners.pop(request.id, None)
            await chat.resume(connection, request.id, agent._serving)

    async def _cancel(self, frame: dict[str, Any]) -> None:
        id = frame.get("id")
        if isinstance(id, str):
            async with self._chatting() as agent:
                await agent.cancel_chat(id, "The user has stopped it.")

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
            self._room.chat.probe(self._connection, known, agent._serving)

    async def _resume_ack(self, frame: dict[str, Any]) -> None:
        id = frame.get("id")
        if isinstance(id, str):
            async with self._chatting() as agent:
                await self._room.chat.resume(self._connection, id, agent._serving)

    async def _tool_result(self, frame: dict[str, Any]) -> None:
        id = frame.get("toolCallId")
        if not isinstance(id, str):
            return
        error = frame.get("errorText")
        is_error = frame.get("state") == "output-error"
        tools = frame.get("clientTools")
        async with self._chatting() as agent:
            before = agent._inbox.last_seq
            try:
                await agent.add_tool_output(
                    id,
                    frame.get("output"),
                    error_text=(
                        (error if isinstance(error, str) else "Tool execution denied by user")
                        if is_error
                        else None
                    ),
                    auto_continue=frame.get("autoContinue") is True,
                    client_tools=tools if isinstance(tools, list) else None,
                )
            except (TypeError, ValueError) as problem:  # too deep, say, or no schema
                text = str(problem)[:200]
                logger.warning("%s: a tool's result was refused: %s", self._room.address, text)
                return
            self._own_continuation(agent, before)

    async def _tool_approval(self, frame: dict[str, Any]) -> None:
        id, approved = frame.get("toolCallId"), frame.get("approved")
        if isinstance(id, str) and isinstance(approved, bool):
            async with self._chatting() as agent:
                before = agent._inbox.last_seq
                goes_on = frame.get("autoContinue") is True
                await agent.add_tool_approval(id, approved, auto_continue=goes_on)
                self._own_continuation(agent, before)

    def _own_continuation(self, agent: Any, before: int) -> None:
        """What goes on by itself belongs to whoever gave the last answer."""
        for entry in agent._inbox.open:
            if entry.origin == "auto" and entry.seq > before:
                self._room.chat.owners[entry.id] = self._connection


_HANDLERS: dict[str, Handler] = {
    frames.STATE: Socket._state,
    frames.RPC: Socket._rpc,
    frames.CHAT_REQUEST: Socket._request,
    frames.CANCEL: Socket._cancel,
    frames.CLEAR: Socket._clear,
    frames.RESUME_REQUEST: Socket._resume_request,
    frames.RESUME_ACK: Socket._resume_ack,
    frames.TOOL_RESULT: Socket._tool_result,
    frames.TOOL_APPROVAL: Socket._tool_approval,
}


def _result(id: str, result: str, *, done: bool) -> str:
    """An answer, whose result is JSON text already."""
    flag = "true" if done else "false"
    head = f'{{"type":"rpc","id":{json.encode(id)},"success":true,"done":{flag}'
    return f'{head},"result":{result}}}'


def _failed(id: str, error: str) -> str:
    return frames.frame(frames.RPC, id=id, success=False, error=error)


async def _called(agent: Any, name: str, *arguments: Any) -> None:
    """A hook of the application, if there is one."""
    hook = getattr(agent, name, None)
    if hook is not None:
        answer = hook(*arguments)
        if asyncio.iscoroutine(answer):
            await answer
