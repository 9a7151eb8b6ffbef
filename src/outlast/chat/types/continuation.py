"""The settings for continuing an interrupted answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from outlast.core.clock import seconds

ContinuationWay = Literal["retrieve", "prefill", "instruct", "new_message"]
WAYS: tuple[ContinuationWay, ...] = get_args(ContinuationWay)
"""From the best way to the last resort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """How an interrupted answer is continued.

    ```python
    from outlast import Continuation, Think

    class Assistant(Think):
        model = "openai:gpt-5-mini"
        continuation = Continuation(may_replace=False)
    ```

    `way` is the best way to use: "retrieve", "prefill", "instruct" or "new_message". None chooses the best
    one that the model is known to support. The rest applies to a model that is asked to continue
    ("instruct"): its words are held back until it is clear whether they repeat what the reader has seen.
    """

    way: ContinuationWay | None = None
    removes_preamble: bool = True  # "Sure, here is the rest:" is not shown
    may_replace: bool = True  # an answer that starts over replaces one that had no effects
    max_characters: int = 200  # held back at most
    max_delay: float | timedelta = 0.4  # seconds, of what is held back

    def __post_init__(self) -> None:
        if self.way is not None and self.way not in WAYS:
            raise ValueError(f"way must be one of {', '.join(map(repr, WAYS))}, got {self.way!r}")
        most = self.max_characters
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise ValueError(f"max_characters must be an int of at least 1, got {most!r}")
        seconds(self.max_delay, "max_delay")


def continuation_of(given: Any) -> Continuation:
    """Return the settings that `continuation=` stands for: a way, all of the settings, or None."""
    if isinstance(given, Continuation):
        return given
    if given is None or given in WAYS:
        return Continuation(way=given)
    error = ValueError if isinstance(given, str) else TypeError
    ways = ", ".join(map(repr, WAYS))
    raise error(f"continuation must be one of {ways}, or a Continuation, got {given!r}")
