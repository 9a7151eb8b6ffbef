"""Shortens what the model sees of a conversation that is too long for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from outlast.agent.part import Part, Parts, report_failure
from outlast.chat.context.overflow import Overflow, OverflowReason
from outlast.chat.context.shorten import with_shortened_steps
from outlast.chat.turn.turn import Turn
from outlast.chat.types.events import ContextCompacted

CONVERSATION = "the conversation"

# How providers report the tokens of a request and their limit, in either order.
_REPORTED = (
    re.compile(r"(?P<used>\d[\d,]*) tokens? > (?P<limit>\d[\d,]*)"),  # Anthropic
    re.compile(  # OpenAI and servers that imitate it
        r"context length is (?P<limit>\d[\d,]*).*?(?:requested|resulted in|contains?) (?P<used>\d[\d,]*)",
        re.DOTALL,
    ),
    re.compile(r"token count \(?(?P<used>\d[\d,]*)\)? exceeds.*?(?P<limit>\d[\d,]*)"),  # Google
    re.compile(  # llama.cpp
        r"request \((?P<used>\d[\d,]*) tokens\) exceeds.*?\((?P<limit>\d[\d,]*) tokens\)"
    ),
)


async def shorten(
    parts: Parts,
    turn: Turn,
    path: Sequence[dict[str, Any]],
    reason: OverflowReason,
    attempt: int,
) -> bool:
    """Let the parts compact the conversation, and shorten the settled steps of this turn.

    Returns whether the model sees less from now on.
    """
    overflow = Overflow(path, reason, turn.request_id, attempt)
    shortened = False
    for compact in parts.overriding("compact"):
        try:
            shortened = await compact(overflow) or shortened
        except Exception as error:
            report_failure(cast(Part, compact.__self__), "compact", error)
    message = turn.builder.message()
    if not turn.is_condensed and with_shortened_steps(message) is not message:
        turn.is_condensed = shortened = True
    parts.activation.events.emit(
        ContextCompacted,
        parts.activation.address.text,
        turn.request_id,
        reason=reason,
        shortened=shortened,
        attempt=attempt,
    )
    return shortened


def reported_excess(text: str) -> tuple[int, int] | None:
    """Return the tokens of the request and the limit that an error of a provider names.

    ```python
    from outlast.chat.answer.overflow import reported_excess

    assert reported_excess("prompt is too long: 215,000 tokens > 200,000 maximum") == (215000, 200000)
    ```
    """
    for pattern in _REPORTED:
        found = pattern.search(text)
        if found is not None:
            used, limit = (int(found[name].replace(",", "")) for name in ("used", "limit"))
            return (used, limit) if used > limit > 0 else None
    return None


def fixed_part_error(sizes: Mapping[str, int], excess: tuple[int, int] | None) -> str | None:
    """Return an error about what cannot be shortened; None if the conversation itself is the larger part.

    `sizes` are the characters of each piece of the request.
    """
    fixed = {name: size for name, size in sizes.items() if name != CONVERSATION and size > 0}
    if not fixed or sum(fixed.values()) < sizes.get(CONVERSATION, 0):
        return None
    largest = sorted(fixed.items(), key=lambda each: -each[1])[:3]
    told = ", ".join(f"{name} has about {max(1, size // 4):,} tokens" for name, size in largest)
    by = "" if excess is None else f" by {excess[0] - excess[1]:,} tokens"
    return (
        f"The request is too long for the model{by}, and no older message can be shortened: {told}."
    )
