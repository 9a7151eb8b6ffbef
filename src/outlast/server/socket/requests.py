"""Parses what a client asks of a chat agent, from a frame or from the body of a request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.core import json
from outlast.core.errors import OutlastError
from outlast.server.limits import Limits

MAX_ID = 200  # characters
_OURS = ("messages", "trigger", "clientTools", "messageId", "id")


class Unreadable(OutlastError):
    """A request is malformed; its client receives the message."""

    is_for_users = True


class RequestTooLarge(OutlastError):
    """A request exceeds a limit; its client receives the message."""

    is_for_users = True


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A new message, or a request for another answer. `problem`: why it is not accepted."""

    id: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    regenerates: str | None = None  # the message whose answer is regenerated
    body: dict[str, Any] = field(default_factory=dict)
    client_tools: list[Any] | None = None
    problem: str | None = None

    @property
    def message_ids(self) -> list[str]:
        return [message["id"] for message in self.messages]


def parse_frame(
    frame: Mapping[str, Any], limits: Limits, decoded: Mapping[str, Any] | None = None
) -> ChatRequest:
    """Parse a frame, or raise `Unreadable`. `decoded`: its body, if already decoded."""
    id, init = frame.get("id"), frame.get("init")
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID:
        raise Unreadable(f"id must be a string of 1 to {MAX_ID} characters.")
    if not isinstance(init, dict) or init.get("method") != "POST":
        raise Unreadable('init must be an object with the method "POST".')
    text = init.get("body")
    if not isinstance(text, str):
        raise Unreadable("init.body must be a string of JSON.")
    try:
        body = json.decode(text) if decoded is None else decoded
    except ValueError:
        raise Unreadable("The body is not JSON, or it is nested too deeply.") from None
    if not isinstance(body, dict):
        raise Unreadable("The body must be a JSON object.")
    return parse_body(id, body, limits)


def parse_body(id: str, body: Mapping[str, Any], limits: Limits) -> ChatRequest:
    """Parse the body of a request."""
    if "messages" not in body:
        raise Unreadable("messages is missing.")
    shown = body["messages"]
    if not isinstance(shown, list):
        raise Unreadable("messages must be a list.")
    if shown and not _is_message(shown[-1]):
        raise Unreadable(
            f"The last message must be an object with an id of 1 to {MAX_ID} characters, a role and parts."
        )
    tools = body.get("clientTools")
    more = {name: value for name, value in body.items() if name not in _OURS}
    base = ChatRequest(id, body=more, client_tools=tools if isinstance(tools, list) else None)
    last = [message for message in shown if _is_message(message)]
    new = _trailing_users(last)
    problem = _problem(new, limits)
    target = None
    if body.get("trigger") == "regenerate-message":
        users = [message["id"] for message in last if message["role"] == "user"]
        target = users[-1] if users else ""
    return ChatRequest(base.id, new, target, base.body, base.client_tools, problem)


def _problem(new: list[dict[str, Any]], limits: Limits) -> str | None:
    if len(new) > limits.messages:
        return f"A request may contain at most {limits.messages} new messages."
    try:
        sizes = [len(json.encode(message)) for message in new]
    except TypeError:
        return "The message is nested too deeply."
    largest = max(sizes, default=0)
    if largest <= limits.message:
        return None
    return too_large(largest, limits.message)


def too_large(size: int, most: int) -> str:
    """Return the error message for a message that is not accepted."""
    return f"The message is too large: {size:,} characters, and the limit is {most:,}."


def _trailing_users(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the new messages: the store, not the client, has the authority over older ones."""
    new: list[dict[str, Any]] = []
    for message in reversed(shown):
        if message["role"] != "user":
            break
        new.insert(0, message)
    return new


def _is_message(message: object) -> bool:
    return (
        isinstance(message, dict)
        and isinstance(message.get("id"), str)
        and 0 < len(message["id"]) <= MAX_ID
        and isinstance(message.get("role"), str)
        and isinstance(message.get("parts"), list)
    )


def client_message_problem(messages: Any, limits: Limits) -> str | None:
    """Return why a client may not send these messages, or None if it may.

    It may send a string, or messages with the role 'user'; other roles are reserved for code in the process.
    """
    given = messages if isinstance(messages, list) else [messages]
    users: list[dict[str, Any]] = []
    for each in given:
        if isinstance(each, dict) and each.get("role", "user") != "user":
            return f"The role of a client's message must be 'user', got {each.get('role')!r}."
        users.append(each if isinstance(each, dict) else {"text": each})
    return _problem(users, limits)
