"""What a turn may spend: tokens, requests, calls and money, over all of its attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from outlast.chat.message.chunk_json import METADATA_KEY
from outlast.chat.message.partial import is_ours
from outlast.core import json

if TYPE_CHECKING:
    from pydantic_ai.usage import RunUsage, UsageLimits

_COUNTED = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


class Spending:
    """Keeps to the limits of one turn; none are kept if there are none."""

    def __init__(self, limits: UsageLimits | None, usage: RunUsage) -> None:
        self._limits = limits
        self.usage = usage

    def before_request(self) -> None:
        """Raises `UsageLimitExceeded` if another request is too much."""
        if self._limits is not None:
            self._limits.check_before_request(self.usage)

    def before_calls(self, calls: int) -> None:
        """The same for so many calls of tools."""
        if self._limits is None:
            self.usage.tool_calls += calls
            return
        from copy import copy

        projected = copy(self.usage)
        projected.tool_calls += calls
        self._limits.check_before_tool_call(projected)
        self.usage.tool_calls += calls

    def after_request(self, response: Any) -> None:
        """Counts a response."""
        self.usage.incr(response.usage)
        self.usage.requests += 1
        if self._limits is not None:
            self._limits.check_tokens(self.usage)

    def note(self, response: Any) -> dict[str, Any]:
        """What is remembered of a step, should the turn be interrupted."""
        if self._limits is None:
            return {}
        used = {name: getattr(response.usage, name, 0) or 0 for name in _COUNTED}
        spent: dict[str, Any] = {name: count for name, count in used.items() if count}
        cost = getattr(response.usage, "cost", None)
        return {**spent, "cost": str(cost)} if isinstance(cost, Decimal) else spent

    def count(self, message: Mapping[str, Any]) -> int:
        """What earlier attempts have spent, from what they have said. Returns their steps."""
        from pydantic_ai.usage import RequestUsage

        steps = 0
        for part in message["parts"]:
            self.usage.tool_calls += is_ours(part)
            if not isinstance(part, dict) or part.get("type") != "step-start":
                continue
            steps += 1
            self.usage.requests += 1
            ours = (part.get("providerMetadata") or {}).get(METADATA_KEY) or {}
            noted = ours.get("usage") if isinstance(ours, dict) else None
            if isinstance(noted, dict):
                used: dict[str, Any] = {
                    name: noted[name] for name in _COUNTED if isinstance(noted.get(name), int)
                }
                self.usage.incr(RequestUsage(**used))
                self._add_cost(noted.get("cost"))
        return steps

    def count_interrupted(self, asked: Sequence[Any], said: Sequence[Any]) -> None:
        """Add an estimate for a request whose usage never arrived: the messages, and what it has said."""
        if self._limits is None:
            return
        from pydantic_ai.usage import RequestUsage

        used = RequestUsage(input_tokens=_estimate(asked), output_tokens=_estimate(said))
        self.usage.incr(used)

    def _add_cost(self, noted: Any) -> None:
        if isinstance(noted, str) and hasattr(self.usage, "cost"):
            try:
                self.usage.cost = (self.usage.cost or Decimal(0)) + Decimal(noted)
            except InvalidOperation:
                return


def _estimate(parts: Sequence[Any]) -> int:
    """Return about how many tokens this is: one for four characters."""
    return len(json.encode(list(parts))) // 4 if parts else 0
