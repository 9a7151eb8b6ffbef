"""Tools of the client that a provider refuses: whether a failure may be theirs, and which to leave out. Pure.

A client brings its tools with a request. One that the provider does not take would end this turn and each
one that follows, so the turn is tried once more without it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from outlast.chat.model.errors import ModelFailed, default_context_overflow_classifier

_STATUSES = (400, 422)
# How providers name a tool by its place: Anthropic, OpenAI, Google.
_PLACE = re.compile(r"(?:tools|function_?declarations)(?:\.|\[)(\d+)", re.IGNORECASE)


def may_be_refused(failure: BaseException) -> bool:
    """Whether a model refused a request as it stood: nothing has come, and nothing else explains it."""
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
    """The tools of the client that are left out of the next try.

    Those that the error names, or gives the places of among all that were `offered`; otherwise those that no
    provider has taken yet, or all of them.
    """
    named = [name for name in of_client if _is_named(name, text)]
    places = {int(place) for place in _PLACE.findall(text) if len(place) < 6}
    placed = [name for place, name in enumerate(offered) if place in places and name in of_client]
    new = [name for name in of_client if name not in proven]
    return named or placed or new or list(of_client)


def _is_named(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None
