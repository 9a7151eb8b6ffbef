"""Agents over plain HTTP: what a browser tab can do with its socket can be done without one.

| request | answer |
| --- | --- |
| `GET …/get-messages` | the conversation, as clients see it |
| `POST …/chat` | the answer as a UI message stream (server-sent events), for the AI SDK's `useChat` |
| `GET …/chat/stream` | the same of the turn that runs, from `Last-Event-ID` on; 204 when there is none |
| `POST …/chat/stop` | stops a request, or the one that runs |
| `POST …/chat/tool-result`, `…/tool-approval` | answers an open call |
| `GET …/chat/branches` | which messages have others in their place: their ids, in order |
| `POST …/chat/branch` | goes on with another one of them |
| `DELETE …/chat` | clears the conversation |
| `POST …/submissions` | 202 and the submission; `Idempotency-Key` |
| `GET …/submissions/{id}` | how it stands |
| `DELETE …/submissions/{id}` | cancels it |
| `POST …/rpc/{method}` | calls a method that is marked with `@rpc` |

Everything else is the application's: `on_request`.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from outlast.agent.rpc import FinalText, answers, rpc_methods
from outlast.chat.stream import Stream
from outlast.core import json
from outlast.core.errors import OutlastError, RpcRefused, SubmissionConflict
from outlast.host.host import Host
from outlast.server.frames import encode
from outlast.server.limits import Limits
from outlast.server.replay import begins_at, denied, rebuilding
from outlast.server.requests import read
from outlast.server.routing import Target

SSE_HEADERS = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
}
KEEP_ALIVE = 15.0  # seconds between comments on a stream that says nothing


class Refused(Exception):
    """A request that makes no sense; the text is the client's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def answer(host: Host, request: Request, target: Target, limits: Limits) -> Response:
    """What an agent's address answers."""
    try:
        async with host.using(target.address) as agent:
            return await _route(host, agent, request, target, limits)
    except Refused as refusal:
        return JSONResponse({"error": str(refusal)}, refusal.status)


async def _route(
    host: Host, agent: Any, request: Request, target: Target, limits: Limits
) -> Response:
    rest, method = target.rest, request.method
    if method in ("GET", "HEAD") and rest and rest[-1] == "get-messages":
        shown = agent._serving.shown() if hasattr(agent, "_serving") else []
        return Response(
            encode(shown), media_type="application/json", headers={"cache-control": "no-store"}
        )
    if hasattr(agent, "_serving"):
        found = await _chat(host, agent, request, target, limits)
        if found is not None:
            return found
    if method == "POST" and len(rest) == 2 and rest[0] == "rpc":
        return await _call(agent, rest[1], request, limits)
    hook = getattr(agent, "on_request", None)
    if hook is not None:
        made = await hook(request)
        if isinstance(made, Response):
            return made
    raise Refused(404, "Not implemented")


async def _chat(
    host: Host, agent: Any, request: Request, target: Target, limits: Limits
) -> Response | None:
    match request.method, target.rest:
        case "POST", ("chat",):
            return await _ask(host, agent, request, target, limits)
        case "GET", ("chat", "stream") | ("chat", _, "stream"):
            return await _resume(host, agent, request, target)
        case "POST", ("chat", "stop"):
            return await _stop(agent, request, limits)
        case "DELETE", ("chat",):
            await agent.clear_messages()
            return Response(status_code=204)
        case "GET", ("chat", "branches"):
            return JSONResponse(
                {"branches": await agent._serving.forks()}, headers={"cache-control": "no-store"}
            )
        case "POST", ("chat", "branch"):
            body = await _body(request, limits)
            return JSONResponse({"selected": await agent.select_branch(_text(body, "messageId"))})
        case "POST", ("chat", "tool-result"):
            return await _tool_result(agent, request, limits)
        case "POST", ("chat", "tool-approval"):
            return await _tool_approval(agent, request, limits)
        case "POST", ("submissions",):
            return await _submit(agent, request, limits)
        case "GET", ("submissions", id):
            return _submission(await agent.inspect_submission(id))
        case "DELETE", ("submissions", id):
            await agent.cancel_submission(id)
            return _submission(await agent.inspect_submission(id))
    return None


# --- the body ------------------------------------------------------------------------------------


async def _body(request: Request, limits: Limits) -> dict[str, Any]:
    """The JSON object of a request; `Refused` when it is too large, or none."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > limits.frame:
            raise Refused(413, "The request is too large.")
        pieces.append(piece)
    if not size:
        return {}
    try:
        found = json.decode(b"".join(pieces).decode())
    except ValueError:
        raise Refused(400, "The body is not JSON.") from None
    if not isinstance(found, dict):
        raise Refused(400, "The body is not a JSON object.")
    return found


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(400, f"{name} is missing.")
    return value


# --- turns ---------------------------------------------------------------------------------------


async def _ask(
    host: Host, agent: Any, request: Request, target: Target, limits: Limits
) -> Response:
    body = await _body(request, limits)
    id = request.headers.get("idempotency-key") or host.ids.new("request")
    message = body.get("message")
    if "messages" not in body and isinstance(message, dict):
        body = {**body, "messages": [message]}
    wanted = read(id, body, limits)
    if wanted is None:
        raise Refused(400, "messages is missing.")
    if wanted.problem is not None:
        raise Refused(413, wanted.problem)
    _check_pending(agent, limits)
    if not wanted.messages and wanted.regenerates is None:
        going_on, answered = await _answered(agent, body["messages"], wanted.client_tools)
        if going_on is not None:
            before = denied(_last_answer(agent), answered)
            stream = await agent._asking.stream(going_on)
            return _streamed(host, request, target, stream, going_on.id, 0, before)
    try:
        entry, _ = await agent._serving.ask(
            wanted.id,
            wanted.messages,
            regenerates=wanted.regenerates,
            body=wanted.body,
            client_tools=wanted.client_tools,
            concurrency=agent.message_concurrency,
            principal=request.state.principal,
        )
    except (TypeError, ValueError) as error:
        raise Refused(400, str(error)) from None
    if entry is None:
        raise Refused(409, "Another message is being answered.")
    return _streamed(host, request, target, await agent._asking.stream(entry), entry.id, 0)


async def _answered(agent: Any, shown: list[Any], tools: list[Any] | None) -> tuple[Any, list[str]]:
    """The AI SDK sends the message whose calls it has answered: the request that goes on, and the calls."""
    answered = []
    last = shown[-1] if shown else None
    parts = last.get("parts") if isinstance(last, dict) and last.get("role") == "assistant" else ()
    try:
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and isinstance(part.get("toolCallId"), str):
                answered.append(part["toolCallId"])
                await _answered_call(agent, part, tools)
    except (TypeError, ValueError) as problem:
        raise Refused(400, str(problem)) from None
    auto = (entry for entry in agent._inbox.open if entry.origin == "auto")
    return next(auto, None), answered


async def _answered_call(agent: Any, part: dict[str, Any], tools: list[Any] | None) -> None:
    """What was answered before stays as it is."""
    id, error, approval = part["toolCallId"], part.get("errorText"), part.get("approval")
    match part.get("state"):
        case "output-available":
            output = part.get("output")
            await agent.add_tool_output(id, output, auto_continue=True, client_tools=tools)
        case "output-error" if isinstance(error, str):
            await agent.add_tool_output(
                id, error_text=error, auto_continue=True, client_tools=tools
            )
        case "approval-responded" if isinstance(approval, dict):
            approved, reason = approval.get("approved"), approval.get("reason")
            if isinstance(approved, bool):
                why = reason if isinstance(reason, str) else None
                await agent.add_tool_approval(id, approved, reason=why, auto_continue=True)


def _check_pending(agent: Any, limits: Limits) -> None:
    if len(agent._inbox.open) >= limits.pending:
        raise Refused(429, "Too many messages wait for an answer.")


async def _resume(host: Host, agent: Any, request: Request, target: Target) -> Response:
    wanted = request.query_params.get("requestId")
    situation = agent._serving.situation()
    if wanted is None and situation.started is not None:
        wanted = situation.started.request_id
    if wanted is None and situation.waiting:
        wanted = situation.waiting[0]
    base = _last_answer(agent)
    entry = None if wanted is None else await agent._inbox.get(wanted)
    if entry is None:
        return Response(status_code=204)
    last = request.headers.get("last-event-id", "")
    after = int(last) + 1 if last.isdecimal() and len(last) < 16 else 0
    before: list[str] = []
    stream = await agent._asking.stream(entry)
    if not after:
        after = begins_at(stream.chunks)
        if entry.kind == "continue" and entry.ended_at is None and base["parts"]:
            # The AI SDK builds the message anew: also what this goes on with, instead of its `start`.
            before, after = rebuilding(base), after + 1
    return _streamed(host, request, target, stream, entry.id, after, before)


def _last_answer(agent: Any) -> dict[str, Any]:
    """The last message of the assistant; one without parts when there is none."""
    shown = reversed(agent._serving.shown())
    return next((each for each in shown if each["role"] == "assistant"), {"parts": []})


def _streamed(
    host: Host,
    request: Request,
    target: Target,
    stream: Stream,
    id: str,
    after: int,
    before: Sequence[str] = (),
) -> Response:
    """Server-sent events, each with the seq of its chunk, until the end that the AI SDK waits for.

    What comes `before` them is not of the stream, and has no seq. A server that stops ends them sooner,
    without that end: whoever reads resumes where they were.
    """

    async def events() -> AsyncIterator[bytes]:
        async with host.using(target.address):  # it stays in memory while somebody reads
            reader = stream.batches(after)
            following: asyncio.Future[Any] | None = None
            leaving = asyncio.ensure_future(request.state.leaving.wait())
            try:
                if before:
                    yield "".join(f"data: {chunk}\n\n" for chunk in before).encode()
                while True:
                    following = asyncio.ensure_future(anext(reader, None))
                    while not following.done() and not leaving.done():
                        either = {following, leaving}
                        await asyncio.wait(either, timeout=KEEP_ALIVE, return_when=FIRST_COMPLETED)
                        if not following.done() and not leaving.done():
                            yield b": \n\n"
                    if not following.done():
                        return
                    found = following.result()
                    if found is None:
                        break
                    seq, chunks = found
                    lines = [
                        f"id: {seq + n}\ndata: {chunk}\n\n"
                        for n, chunk in enumerate(chunks)
                        if chunk
                    ]
                    yield "".join(lines).encode()
            finally:
                leaving.cancel()
                if following is not None and not following.done():
                    following.cancel()  # a generator that runs cannot be closed
                    await asyncio.wait({following})
                await reader.aclose()  # type: ignore[attr-defined]
            if stream.end is not None:
                yield b"data: [DONE]\n\n"

    return StreamingResponse(
        events(),
        media_type="text/event-stream",
        headers={**SSE_HEADERS, "x-outlast-request-id": id},
    )


async def _stop(agent: Any, request: Request, limits: Limits) -> Response:
    body = await _body(request, limits)
    id = body.get("requestId")
    started = agent._serving.situation().started
    if not isinstance(id, str):
        id = None if started is None else started.request_id
    stopped = id is not None and await agent.cancel_chat(id, "The user has stopped it.")
    return JSONResponse({"stopped": stopped})


async def _tool_result(agent: Any, request: Request, limits: Limits) -> Response:
    body = await _body(request, limits)
    error, tools = body.get("errorText"), body.get("clientTools")
    try:
        done = await agent.add_tool_output(
            _text(body, "toolCallId"),
            body.get("output"),
            error_text=error if isinstance(error, str) else None,
            auto_continue=body.get("autoContinue") is not False,
            client_tools=tools if isinstance(tools, list) else None,
        )
    except (TypeError, ValueError) as problem:
        raise Refused(400, str(problem)) from None
    return JSONResponse({"applied": done})


async def _tool_approval(agent: Any, request: Request, limits: Limits) -> Response:
    body = await _body(request, limits)
    approved, reason = body.get("approved"), body.get("reason")
    if not isinstance(approved, bool):
        raise Refused(400, "approved is missing.")
    done = await agent.add_tool_approval(
        _text(body, "toolCallId"),
        approved,
        reason=reason if isinstance(reason, str) else None,
        auto_continue=body.get("autoContinue") is not False,
    )
    return JSONResponse({"applied": done})


# --- submissions and calls -----------------------------------------------------------------------


async def _submit(agent: Any, request: Request, limits: Limits) -> Response:
    body = await _body(request, limits)
    messages = body.get("messages", body.get("message"))
    if messages is None:
        raise Refused(400, "messages is missing.")
    _check_pending(agent, limits)
    try:
        made = await agent._serving.submit(
            messages,
            key=request.headers.get("idempotency-key"),
            metadata=body.get("metadata"),
            body=body.get("body") if isinstance(body.get("body"), dict) else None,
            principal=getattr(request.state, "principal", None),
        )
    except SubmissionConflict as error:
        raise Refused(409, str(error)) from None
    except (TypeError, ValueError) as error:
        raise Refused(400, str(error)) from None
    return _submission(made, status=202)


def _submission(found: Any, *, status: int = 200) -> Response:
    if found is None:
        raise Refused(404, "There is no such submission.")

    def moment(at: Any) -> int | None:
        return None if at is None else int(at.timestamp() * 1000)

    return JSONResponse(
        {
            "id": found.id,
            "status": found.status,
            "accepted": found.accepted,
            "idempotencyKey": found.idempotency_key,
            "metadata": found.metadata,
            "createdAt": moment(found.created_at),
            "startedAt": moment(found.started_at),
            "completedAt": moment(found.completed_at),
        },
        status,
    )


async def _call(agent: Any, method: str, request: Request, limits: Limits) -> Response:
    body = await _body(request, limits)
    if method not in rpc_methods(type(agent)):
        raise Refused(404, f"Method {method} does not exist")
    try:
        arguments = json.encode(body.get("args", []))
    except TypeError:
        raise Refused(400, "The arguments are nested too deeply.") from None
    results: list[Any] = []
    final: Any = None
    try:
        async for result in answers(agent, method, arguments):
            if isinstance(result, FinalText):
                final = json.decode(result)
            else:
                results.append(json.decode(result))
    except RpcRefused as error:
        raise Refused(400, str(error)) from None
    except OutlastError:
        raise
    except Exception as error:  # the method's own words
        raise Refused(500, str(error)) from None
    if len(results) == 1 and final is None:
        return JSONResponse({"result": results[0]})
    return JSONResponse({"results": results, "result": final})
