"""Messages and chunks of one agent as clients receive them: public fields only, in limited size.

The store keeps them whole. A client receives the URL of a large output or file, and the newest messages
that fit; it can fetch the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outlast.chat.message.content import is_large_file, key_of_file, reference, referenced, url_of
from outlast.chat.transcript.shown import Shown, Stamp
from outlast.core import json
from outlast.server.limits import Limits
from outlast.server.public import encode, public_chunk, public_message

ALWAYS = 2  # messages that a client receives whatever their size: a question and its answer
CACHED = 64  # messages with large values, in their public form
CACHED_SIZE = 16 * 1024  # characters of one of these
KEPT_WINDOW = (
    256 * 1024
)  # characters of a window to cache: the next one differs in a message or two


@dataclass(frozen=True, slots=True)
class Window:
    """The newest messages of a conversation that fit, as JSON, oldest first."""

    texts: list[str]
    has_earlier: bool

    @property
    def text(self) -> str:
        return f"[{','.join(self.texts)}]"

    @property
    def size(self) -> int:
        return sum(map(len, self.texts))


class ClientView:
    """The view for the clients of one agent; `base` is the path under which they reach it."""

    def __init__(self, base: str, limits: Limits) -> None:
        self._base = base
        self._limits = limits
        self._cache: dict[Stamp, str] = {}
        self._window: dict[Stamp, str] = {}  # the messages of the last window, as sent

    def window(self, shown: Shown) -> Window:
        """Return the newest messages that fit."""
        texts: list[str] = []
        size = 0
        kept: dict[Stamp, str] = {}
        pairs = list(zip(shown.messages, shown.stamps, strict=True))
        for message, stamp in reversed(pairs):
            text = self._window.get(stamp) or self.message(message, stamp)
            kept[stamp] = text
            size += len(text)
            is_full = (
                size > self._limits.transcript or len(texts) >= self._limits.transcript_messages
            )
            if is_full and len(texts) >= ALWAYS:
                break
            texts.append(text)
        self._window = kept if size <= KEPT_WINDOW else {}
        has_earlier = len(texts) < len(pairs) or not shown.is_whole
        return Window(texts[::-1], has_earlier)

    def message(self, message: dict[str, Any], stamp: Stamp | None = None) -> str:
        """Return one message as JSON."""
        public = public_message(message)
        if stamp is not None and stamp.size <= self._limits.inline:
            return encode(public)
        known = None if stamp is None else self._cache.get(stamp)
        if known is not None:
            return known
        text = encode(referenced(public, self._base, self._limits.inline)[0])
        if stamp is not None and len(text) <= CACHED_SIZE:
            if len(self._cache) >= CACHED:
                self._cache.pop(next(iter(self._cache)))
            self._cache[stamp] = text
        return text

    def chunk(self, chunk: str, message_id: str | Callable[[], str]) -> str:
        """Return one public chunk of the answer with this id, which is computed only if needed."""
        if len(chunk) <= self._limits.inline:
            return public_chunk(chunk)
        decoded = json.decode(chunk)
        message_id = message_id() if callable(message_id) else message_id
        if is_large_file(decoded, self._limits.inline):
            url = url_of(self._base, message_id, key_of_file(decoded["url"]))
            return public_chunk(encode({**decoded, "url": url}))
        call = decoded.get("toolCallId")
        if decoded.get("type") != "tool-output-available" or not isinstance(call, str):
            return public_chunk(chunk)
        text = encode(decoded.get("output"))
        if len(text) <= self._limits.inline:
            return public_chunk(chunk)
        output = reference(url_of(self._base, message_id, call), text)
        return public_chunk(encode({**decoded, "output": output}))
