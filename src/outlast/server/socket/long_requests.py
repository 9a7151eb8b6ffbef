"""Parses chat requests that repeat a long history, without decoding the history. Pure.

`useAgentChat` and `useChat` send the whole conversation with each message, and only its last messages
count. The parser searches for them from the end, so its cost depends on their size, not on that of the
history.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from json import JSONDecodeError, JSONDecoder
from typing import Any, Protocol

from outlast.core import json

HEAD = 64 * 1024  # characters that may contain the fields before the history
FIRST_LOOK = 64 * 1024  # characters from the end that are searched first
ENDS = 4 * 1024  # characters before and after the body of a frame
TRIED = 40  # candidate positions that are tried
EFFORT = 3  # limit on the total search, as a multiple of the text's length

_ID = re.compile(r'"id"\s*:\s*"((?:[^"\\]|\\.){1,400})"')
_REQUEST = re.compile(r'\{\s*"id"\s*:\s*"[^"]{1,400}"\s*,\s*"init"\s*:\s*\{')
_CALL = re.compile(r'"toolCallId"\s*:\s*"((?:[^"\\]|\\.){1,400})"')
_BODY = re.compile(r'"body"\s*:\s*"')
_MESSAGES = re.compile(r'"messages"\s*:\s*\[')
_OBJECT = re.compile(r'(?:\A|[\[,])\s*(?=\{\s*")')
_NEXT = re.compile(r",\s*(?=\{)")
_SPACE = re.compile(r"\s*")
_decoder = JSONDecoder()


class Text(Protocol):
    """A JSON text of which pieces are read."""

    def head(self, size: int) -> str: ...
    def tail(self, size: int) -> tuple[str, bool]: ...


class Plain:
    """The text itself."""

    def __init__(self, text: str) -> None:
        self._text = text

    def head(self, size: int) -> str:
        return self._text[:size]

    def tail(self, size: int) -> tuple[str, bool]:
        """Return its end, and whether that is all of it."""
        return self._text[-size:], size >= len(self._text)


class Quoted:
    """A text that another one contains as a JSON string, between two positions."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self._text = text
        self._start = start
        self._end = end

    def head(self, size: int) -> str:
        end = min(self._end, self._start + size)
        if end < self._end:  # do not cut an escape sequence
            end = self._text.rfind(",", self._start, end)
        return self._unquoted(self._start, end)

    def tail(self, size: int) -> tuple[str, bool]:
        start = max(self._start, self._end - size)
        if start > self._start:
            found = _NEXT.search(self._text, start, self._end)
            start = self._end if found is None else found.end()
        return self._unquoted(start, self._end), start == self._start

    def _unquoted(self, start: int, end: int) -> str:
        found = json.decode(f'"{self._text[start:end]}"') if end > start else ""
        return found if isinstance(found, str) else ""


def request_frame(text: str, most: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the frame of a chat request without its body, and the body with only the last messages.

    None if it is not such a frame, or if its new part is longer than `most`.
    """
    body_at = _BODY.search(text, 0, ENDS)
    if body_at is None:
        return None
    start = body_at.end()
    for end in islice(_closing_quotes(text), TRIED):
        frame = _decoded(text[:start] + text[end:])
        if frame is None or not isinstance(frame.get("init"), dict):
            continue
        if frame["init"].get("body") == "" and end >= start:
            body = request_body(Quoted(text, start, end), most)
            return None if body is None else (frame, body)
    return None


def request_body(text: Text, most: int) -> dict[str, Any] | None:
    """Return the body of a chat request; see `request_frame`."""
    before = _fields_before(text)
    if before is None:
        return None
    size = FIRST_LOOK
    while True:
        tail, is_all = text.tail(size)
        is_last_look = is_all or size > 2 * most  # the new part would be too long
        found = _last_messages(tail, may_be_all=is_last_look)
        if found is not None:
            messages, after = found
            return {**before, **after, "messages": messages}
        if is_last_look:
            return None
        size = min(4 * size, 2 * most + 1)


def request_id(text: str) -> str | None:
    """Return the id of a chat request that is too long to be parsed, from its beginning."""
    is_request = _REQUEST.match(text) or _is_of("cf_agent_use_chat_request", text)
    return _first(_ID, text) if is_request else None


def call_id(text: str) -> str | None:
    """Return the id of a method call that is too long to be parsed."""
    return _first(_ID, text) if _is_of("rpc", text) else None


def answered_call(text: str) -> str | None:
    """Return the tool call id of a result that is too long to be parsed."""
    return _first(_CALL, text) if _is_of("cf_agent_tool_result", text) else None


def _is_of(kind: str, text: str) -> bool:
    field = re.compile(rf'"type"\s*:\s*"{kind}"')
    return any(field.search(piece) for piece in (text[:ENDS], text[-ENDS:]))


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text, 0, ENDS) or pattern.search(text, max(0, len(text) - ENDS))
    found = None if match is None else json.decode(f'"{match[1]}"')
    return found if isinstance(found, str) else None


def _closing_quotes(text: str) -> Iterator[int]:
    """Yield the positions where the string of the body may end, last one first."""
    place = len(text)
    while (place := text.rfind('"', max(0, len(text) - ENDS), place)) >= 0:
        before = text[max(0, place - 64) : place]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            yield place


def _fields_before(text: Text) -> dict[str, Any] | None:
    head = text.head(HEAD)
    for match in islice(_MESSAGES.finditer(head), TRIED):
        fields = _decoded(f"{head[: match.end()]}]}}")
        if fields is not None:
            return fields
    return None


def _last_messages(
    tail: str, *, may_be_all: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
    """Return the messages at the end of the history and the fields after it; None if `tail` is too short."""
    effort, place = EFFORT * len(tail) + FIRST_LOOK, 0
    while (match := _OBJECT.search(tail, place)) is not None:
        messages, end = _chain(tail, match.end())
        effort -= end - match.end() + 1
        if effort < 0:
            return None
        # The decoded text contains no other beginning: it would end at the same place.
        place = max(end, match.end() + 1) if messages else match.end() + 1
        is_enough = may_be_all or any(message.get("role") != "user" for message in messages)
        if tail[end : end + 1] != "]" or not is_enough:
            continue
        after = _decoded(f'{{"messages":[]{tail[end + 1 :]}')
        if after is not None:
            return messages, after
    return None


def _chain(tail: str, place: int) -> tuple[list[dict[str, Any]], int]:
    """Return the consecutive messages from here on, and where they end."""
    messages: list[dict[str, Any]] = []
    while True:
        try:
            message, place = _decoder.raw_decode(tail, place)
        except JSONDecodeError as error:
            return messages, max(place, error.pos)
        except RecursionError:
            return messages, len(tail)
        if not isinstance(message, dict) or not isinstance(message.get("parts"), list):
            return [], place + 1
        messages.append(message)
        place = _after_space(tail, place)
        if tail[place : place + 1] != ",":
            return messages, place
        place = _after_space(tail, place + 1)


def _after_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return place if match is None else match.end()


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        found = json.decode(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
