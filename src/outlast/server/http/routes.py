"""Agents over plain HTTP: everything that a browser can do over its socket, without one.

| request | response |
| --- | --- |
| `GET …/get-messages` | the newest messages that fit; `?before=ID[&limit=N]`: older ones |
| `GET …/chat/content/{message}/{key}` | a large output or file of which clients receive the URL |
| `POST …/chat` | the answer as a UI message stream (server-sent events), for the AI SDK's `useChat` |
| `GET …/chat/stream` | the same for the running turn, after `Last-Event-ID`; 204 without one |
| `POST …/chat/stop` | stops a request, or the running one |
| `POST …/chat/tool-result`, `…/tool-approval` | answers an open call |
| `GET …/chat/branches` | messages that have alternatives, with the ids of these, in order |
| `POST …/chat/branch` | switches to an alternative |
| `DELETE …/chat` | clears the conversation |
| `POST …/submissions` | 202 and the submission; `Idempotency-Key` |
| `GET …/submissions/{id}` | its status |
| `DELETE …/submissions/{id}` | cancels it |
| `POST …/rpc/{method}` | calls a method that is marked with `@rpc` |

Every other request goes to the application's `on_request`.
"""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64decode
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outlast.agent.gateway import handle_request
from outlast.agent.rpc import FinalText, call_method, rpc_methods
from outlast.chat.gateway import chat_of, is_chat
from outlast.core import json
from outlast.core.clock import seconds
from outlast.core.errors import OutlastError, PublicError, RpcRefused, SubmissionConflict
from outlast.host.address import Address
from outlast.host.life.host import Host
from outlast.server.http.error_ids import log_failed_call
from outlast.server.http.event_stream import EventStream
from outlast.server.http.paced_response import PacedResponse
from outlast.server.http.unavailable import NOT_STORED
from outlast.server.limits import Limits
from outlast.server.public import encode
from outlast.server.room.client_view import ClientView
from outlast.server.room.replay import begins_at, denied, rebuild_chunks
from outlast.server.routing import Target
from outlast.server.socket.long_requests import Plain, request_body
from outlast.server.socket.requests import Unreadable, client_message_problem, parse_body, too_large

SHOWN_IMAGES = {"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"}
CONTENT_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox; default-src 'none'",
}


class Refused(Exception):
    """A request that is refused; the client receives the message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def most_of(target: Target, limits: Limits) -> int:
    """Return the largest body that a request to this agent may have; `on_request` allows a larger one."""
    return limits.frame if target.rest == ("chat",) else limits.body


async def respond(host: Host, request: Request, target: Target, limits: Limits) -> Response:
    """Handle a request to an agent."""
    try:
        async with host.using(target.address, may_make=True) as agent:
            response = await _route(host, agent, request, target, limits)
        if isinstance(response, PacedResponse):
            response.stall = seconds(limits.stall)
        return response
    except NOT_STORED as error:
        if (request.method, target.rest) == ("POST", ("chat",)):
            await _report(host, request, target, error)
        raise
    except Refused as refusal:
        return JSONResponse({"error": str(refusal)}, refusal.status)


async def _report(host: Host, request: Request, target: Target, error: Exception) -> None:
    """Report a message that was not stored. Its agent was discarded."""
    with contextlib.suppress(OutlastError):
        async with host.using(target.address) as agent:
            if is_chat(agent):
                await chat_of(agent).refused(
                    error, request.headers.get("idempotency-key"), "persist"
                )


async def _route(
    host: Host, agent: Any, request: Request, target: Target, limits: Limits
) -> Response:
    rest, method = target.rest, request.method
    if method in ("GET", "HEAD") and rest and rest[-1] == "get-messages":
        return await _messages(agent, request, limits)
    if is_chat(agent):
        found = await _chat(host, agent, request, target, limits)
        if found is not None:
            return found
    if method == "POST" and len(rest) == 2 and rest[0] == "rpc":
        return await _call(host, target.address, agent, rest[1], request, limits)
    response = await handle_request(agent, request, rest)
    if isinstance(response, Response):
        return response
    hook = getattr(agent, "on_request", None)
    if hook is not None:
        made = await hook(request)
        if isinstance(made, Response):
            return made
    raise Refused(404, "Not implemented")


async def _messages(agent: Any, request: Request, limits: Limits) -> Response:
    """Return the newest messages that fit, or those before a given one."""
    before = request.query_params.get("before")
    if not is_chat(agent):
        return _json("[]", earlier=False)
    if before is None:
        shown = chat_of(agent).messages()
    else:
        limit = request.query_params.get("limit", "")
        most = limits.transcript_messages
        count = min(int(limit), most) if limit.isdecimal() and len(limit) < 10 else most
        earlier = await chat_of(agent).earlier(before, limits.transcript, max(1, count))
        if earlier is None:
            raise Refused(404, "No such message.")
        shown = earlier
    window = ClientView(request.state.base, limits).window(shown)
    return _json(window.text, earlier=window.has_earlier)


def _json(text: str, *, earlier: bool) -> Response:
    more = "true" if earlier else "false"
    headers = {"cache-control": "no-store", "x-outlast-earlier": more}
    return PacedResponse(text, media_type="application/json", headers=headers)


async def _content(agent: Any, message_id: str, key: str) -> Response:
    """Return a value of which clients receive the URL."""
    part = await chat_of(agent).content(unquote(message_id), unquote(key))
    if part is None:
        raise Refused(404, "No such content.")
    if "output" in part:
        headers = {**CONTENT_HEADERS, "cache-control": "no-store"}
        return PacedResponse(encode(part["output"]), media_type="application/json", headers=headers)
    return _file(part)


def _file(part: Mapping[str, Any]) -> Response:
    """Return a file that is stored as a `data:` URL. Only plain images are displayed under our origin."""
    head, _, data = str(part["url"]).partition(",")
    try:
        content = b64decode(data) if head.endswith(";base64") else unquote_to_bytes(data)
    except ValueError:
        raise Refused(404, "The file is unreadable.") from None
    kind = head.removeprefix("data:").partition(";")[0] or "text/plain"
    is_shown = kind in SHOWN_IMAGES
    headers = {**CONTENT_HEADERS, "cache-control": "private, max-age=86400, immutable"}
    if not is_shown:
        headers["content-disposition"] = "attachment"
    return PacedResponse(
        content, media_type=kind if is_shown else "application/octet-stream", headers=headers
    )


async def _chat(
    host: Host, agent: Any, request: Request, target: Target, limits: Limits
) -> Response | None:
    match request.method, target.rest:
        case "POST", ("chat",):
            return await _ask(host, agent, request, target, limits)
        case "GET", ("chat", "stream") | ("chat", _, "stream"):
            return await _resume(host, agent, request, target, limits)
        case "POST", ("chat", "stop"):
            return await _stop(agent, request, limits)
        case "DELETE", ("chat",):
            await agent.clear_messages()
            return Response(status_code=204)
        case "GET", ("chat", "branches"):
            return JSONResponse(
                {"branches": await chat_of(agent).forks()}, headers={"cache-control": "no-store"}
            )
        case "POST", ("chat", "branch"):
            body = await _body(request, limits)
            return JSONResponse({"selected": await agent.select_branch(_text(body, "messageId"))})
        case "GET", ("chat", "content", message_id, key):
            return await _content(agent, message_id, key)
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
    """Return the JSON object in the body; `Refused` when it is too large or not an object."""
    text = await _body_text(request, limits.body)
    return _object(text) if text else {}


async def _chat_body(request: Request, limits: Limits) -> dict[str, Any]:
    """The same for a request that may repeat a long history, of which only the last messages are read."""
    text = await _body_text(request, limits.frame)
    if len(text) <= limits.body:
        return _object(text) if text else {}
    found = await asyncio.to_thread(request_body, Plain(text), limits.body)
    if found is None:
        raise Refused(413, too_large(len(text), limits.body))
    return found


async def _body_text(request: Request, most: int) -> str:
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise Refused(413, f"The request is too large: the limit is {most:,} bytes.")
        pieces.append(piece)
    try:
        return b"".join(pieces).decode()
    except ValueError:
        raise Refused(400, "The body is not JSON.") from None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.decode(text)
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
    id = request.headers.get("idempotency-key") or host.ids.new("request")
    try:
        body = await _chat_body(request, limits)
        message = body.get("message")
        if "messages" not in body and isinstance(message, dict):
            body = {**body, "messages": [message]}
        wanted = parse_body(id, body, limits)
        if wanted.problem is not None:
            raise Refused(413, wanted.problem)
    except (Refused, Unreadable) as error:
        text = await chat_of(agent).refused(error, id, "parse", default=str(error))
        raise Refused(error.status if isinstance(error, Refused) else 400, text) from None
    _check_pending(agent, limits)
    _check_room(request)
    if not wanted.messages and wanted.regenerates is None:
        going_on, answered = await _apply_answers(agent, body["messages"], wanted.client_tools)
        if going_on is not None:
            answer = _last_answer(agent)
            stream = await chat_of(agent).stream(going_on)
            return EventStream(
                host,
                target.address,
                request,
                limits,
                stream,
                id=going_on.id,
                before=denied(answer, answered),
                continues=str(answer.get("id")),
            )
    try:
        entry, _ = await chat_of(agent).ask(
            wanted.id,
            wanted.messages,
            regenerates=wanted.regenerates,
            body=wanted.body,
            client_tools=wanted.client_tools,
            concurrency=agent.message_concurrency,
            principal=request.state.principal,
        )
    except NOT_STORED:
        raise
    except Exception as error:
        is_invalid = isinstance(error, TypeError | ValueError)
        default = str(error) if is_invalid else None
        text = await chat_of(agent).refused(error, id, "persist", default=default)
        if is_invalid:
            raise Refused(400, text) from None
        raise
    if entry is None:
        raise Refused(409, "Another message is being answered.")
    stream = await chat_of(agent).stream(entry)
    return EventStream(host, target.address, request, limits, stream, id=entry.id)


async def _apply_answers(
    agent: Any, shown: list[Any], tools: list[Any] | None
) -> tuple[Any, list[str]]:
    """Apply the answers in the message that the AI SDK sends.

    Returns the request that continues, and the calls.
    """
    answered = []
    last = shown[-1] if shown else None
    parts = last.get("parts") if isinstance(last, dict) and last.get("role") == "assistant" else ()
    try:
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and isinstance(part.get("toolCallId"), str):
                answered.append(part["toolCallId"])
                await _apply_answer(agent, part, tools)
    except (TypeError, ValueError) as problem:
        raise Refused(400, str(problem)) from None
    return next(iter(chat_of(agent).continuations()), None), answered


async def _apply_answer(agent: Any, part: dict[str, Any], tools: list[Any] | None) -> None:
    """Apply one answer, unless the call already has one."""
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
    if chat_of(agent).waiting >= limits.pending:
        raise Refused(429, "Too many messages are waiting for an answer.")


def _check_room(request: Request) -> None:
    if request.state.readers.is_full:
        raise Refused(503, "The server has too many connections. Try again later.")


async def _resume(
    host: Host, agent: Any, request: Request, target: Target, limits: Limits
) -> Response:
    _check_room(request)
    wanted = request.query_params.get("requestId")
    situation = chat_of(agent).situation()
    if wanted is None and situation.started is not None:
        wanted = situation.started.request_id
    if wanted is None and situation.waiting:
        wanted = situation.waiting[0]
    base = _last_answer(agent)
    entry = None if wanted is None else await chat_of(agent).entry(wanted)
    if entry is None:
        return Response(status_code=204)
    last = request.headers.get("last-event-id", "")
    after = int(last) + 1 if last.isdecimal() and len(last) < 16 else 0
    before: list[str] = []
    stream = await chat_of(agent).stream(entry)
    if not after:
        after = begins_at(stream.chunks)
        if entry.kind == "continue" and entry.ended_at is None and base["parts"]:
            # The AI SDK rebuilds the message from chunks, so the part that the turn continues is sent, too,
            # instead of its `start`.
            before, after = rebuild_chunks(base), after + 1
    return EventStream(
        host,
        target.address,
        request,
        limits,
        stream,
        id=entry.id,
        after=after,
        before=before,
        continues=str(base.get("id")),
    )


def _last_answer(agent: Any) -> dict[str, Any]:
    """Return the last message of the assistant; without one, a message without parts."""
    return chat_of(agent).messages().answer or {"parts": []}


async def _stop(agent: Any, request: Request, limits: Limits) -> Response:
    body = await _body(request, limits)
    id = body.get("requestId")
    started = chat_of(agent).situation().started
    if not isinstance(id, str):
        id = None if started is None else started.request_id
    stopped = id is not None and await agent.cancel_chat(id, "The user stopped it.")
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
    refused = client_message_problem(messages, limits)
    if refused is not None:
        raise Refused(400, refused)
    _check_pending(agent, limits)
    try:
        made = await chat_of(agent).submit(
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
        raise Refused(404, "No such submission.")

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


async def _call(
    host: Host, address: Address, agent: Any, method: str, request: Request, limits: Limits
) -> Response:
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
        async for result in call_method(agent, method, arguments):
            if isinstance(result, FinalText):
                final = json.decode(result)
            else:
                results.append(json.decode(result))
    except RpcRefused as error:
        raise Refused(400, str(error)) from None
    except PublicError as error:
        raise Refused(500, str(error)) from None
    except OutlastError:
        raise
    except Exception as error:
        raise Refused(500, log_failed_call(host, f"{address}.{method}", error)) from None
    if len(results) == 1 and final is None:
        return JSONResponse({"result": results[0]})
    return JSONResponse({"results": results, "result": final})
