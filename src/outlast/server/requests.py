"""What a client asks a chat agent, read from a frame or from the body of a request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.core import json
from outlast.server.limits import Limits

_OURS = ("messages", "trigger", "clientTools", "messageId", "id")


@dataclass(frozen=True, slots=True)
class Asked:
    """A message, or the wish for another answer. `problem`: why it is not accepted."""

    id: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    regenerates: str | None = None  # the message whose answer is to be another one
    body: dict[str, Any] = field(default_factory=dict)
    client_tools: list[Any] | None = None
    problem: str | None = None

    @property
    def message_ids(self) -> list[str]:
        return [message["id"] for message in self.messages]


def asked(frame: Mapping[str, Any], limits: Limits) -> Asked | None:
    """What a frame asks; None: it is none that counts."""
    id, init = frame.get("id"), frame.get("init")
    if not isinstance(id, str) or not id or len(id) > 200 or not isinstance(init, dict):
        return None
    text = init.get("body")
    if init.get("method") != "POST" or not isinstance(text, str):
        return None
    try:
        body = json.decode(text)
    except ValueError:
        return None
    return read(id, body, limits) if isinstance(body, dict) else None


def read(id: str, body: Mapping[str, Any], limits: Limits) -> Asked | None:
    """The same of the body of a request; None: it has no messages."""
    shown = body.get("messages")
    if not isinstance(shown, list):
        return None
    tools = body.get("clientTools")
    more = {name: value for name, value in body.items() if name not in _OURS}
    base = Asked(id, body=more, client_tools=tools if isinstance(tools, list) else None)
    last = [message for message in shown if _is_message(message)]
    if body.get("trigger") == "regenerate-message":
        return _regenerating(base, last)
    new = _trailing_users(last)
    problem = None
    if len(new) > limits.messages:
        problem = f"A request may bring {limits.messages} messages."
    else:
        problem = _problem(new, limits)
    return Asked(base.id, new, None, base.body, base.client_tools, problem)


def _problem(new: list[dict[str, Any]], limits: Limits) -> str | None:
    try:
        sizes = [len(json.encode(message)) for message in new]
    except TypeError:
        return "The message is nested too deeply."
    return "The message is too large." if any(size > limits.message for size in sizes) else None


def _regenerating(base: Asked, shown: list[dict[str, Any]]) -> Asked:
    users = [message["id"] for message in shown if message["role"] == "user"]
    target = users[-1] if users else ""
    return Asked(base.id, [], target, base.body, base.client_tools)


def _trailing_users(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is new: whatever the client says of older messages, ours count."""
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
        and 0 < len(message["id"]) <= 200
        and isinstance(message.get("role"), str)
        and isinstance(message.get("parts"), list)
    )
