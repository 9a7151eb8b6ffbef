"""Estimates tokens of texts and messages. Pure, except for the scale that the model's usage calibrates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outlast.chat.message.results import Message
from outlast.chat.message.tool_part import tool_name
from outlast.core import json

TokenCounter = Callable[[Sequence[Message]], int]
"""Takes messages, returns how many tokens they have."""

Estimate = Callable[[str], int]

PER_MESSAGE = 4
PER_FILE = 1000  # what models charge for an image of ordinary size
LEAST_SCALE, MOST_SCALE = 0.5, 4.0  # further off are only models that count nothing


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has.

    ```python
    from outlast.session.tokens import estimated_tokens

    assert estimated_tokens("a b c d") == 6      # short words: 1.3 tokens each
    assert estimated_tokens("x" * 400) == 100    # long ones: four characters a token
    ```
    """
    return math.ceil(max(len(text) / 4, len(text.split()) * 1.3, _wide(text)))


def _wide(text: str) -> float:
    """Scripts without spaces take about one token a character."""
    return 0.0 if text.isascii() else sum(character >= "\u2e80" for character in text) * 1.0


def of_message(message: Mapping[str, Any]) -> int:
    """Return about how many tokens a message has, as the model sees it."""
    parts = message.get("parts")
    return PER_MESSAGE + sum(map(_of_part, parts if isinstance(parts, list) else ()))


def _of_part(part: Any) -> int:
    if not isinstance(part, Mapping):
        return 0
    if tool_name(part) is not None:
        told = (part.get("input"), part.get("output"), part.get("errorText"))
        return sum(estimated_tokens(_text(each)) for each in told if each is not None)
    if part.get("type") == "file":
        return PER_FILE
    return estimated_tokens(_text(part.get("text")))


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.encode(value, "value", json.MAX_DEPTH + 10)
    except ValueError:
        return str(value)


class MessageTokens:
    """Estimates of messages, each made once. Messages are known by identity, as in `HistoryCache`."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[Mapping[str, Any], int]] = {}

    def of(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens of each message; estimates of other messages are forgotten."""
        kept = {}
        for message in messages:
            found = self._known.get(id(message))
            kept[id(message)] = found if found is not None else (message, of_message(message))
        self._known = kept
        return [kept[id(message)][1] for message in messages]


def calibrated(scale: float, estimated: int, reported: int) -> float:
    """Return a better scale, after the model reported how many tokens a request really had."""
    if estimated <= 0 or reported <= 0:
        return scale
    measured = min(MOST_SCALE, max(LEAST_SCALE, reported / estimated))
    return round((scale + measured) / 2, 3)
