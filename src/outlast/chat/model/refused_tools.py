"""Client tools that a provider rejects: whether a failure may be caused by one, and which to omit. Pure.

A client sends its tools with a request. A tool that the provider rejects would fail this turn and every later
one, so the turn is retried without it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from outlast.chat.model.errors import ModelFailed, default_context_overflow_classifier

_STATUSES = (400, 422)
# How Anthropic, OpenAI and Google refer to a tool by its index.
_PLACE = re.compile(r"(?:tools|function_?declarations)(?:\.|\[)(\d+)", re.IGNORECASE)


def may_be_refused(failure: BaseException) -> bool:
    """Return whether a model may have rejected the request because of its tools."""
    if not isinstance(failure, ModelFailed) or failure.kind not in ("rejected", "unknown"):
        return False
    if failure.response is not None and failure.response.parts:
        return False
    if default_context_overflow_classifier(failure) is not None:
        return False
    status = getattr(failure.__cause__, "status_code", None)
    return status is None or status in _STATUSES


def blamed(
    text: str, offered: Sequence[str], of_client: Sequence[str], proven: Collection[str]
) -> list[str]:
    """Return the client tools to omit from the retry.

    Those that the error names, or refers to by index in `offered`; otherwise those that no provider has
    accepted yet, or all of them.
    """
    named = [name for name in of_client if _is_named(name, text)]
    places = {int(place) for place in _PLACE.findall(text) if len(place) < 6}
    placed = [name for place, name in enumerate(offered) if place in places and name in of_client]
    new = [name for name in of_client if name not in proven]
    return named or placed or new or list(of_client)


def _is_named(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None
