"""The usage limits of a turn: tokens, requests, calls and cost, over all of its attempts."""

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
    """Counts the usage of one turn, and enforces its limits, if any."""

    def __init__(self, limits: UsageLimits | None, usage: RunUsage) -> None:
        self._limits = limits
        self.usage = usage

    def before_request(self) -> None:
        """Raise `UsageLimitExceeded` if another request would exceed a limit."""
        if self._limits is not None:
            self._limits.check_before_request(self.usage)

    def before_calls(self, calls: int) -> None:
        """Count calls of tools. Raises `UsageLimitExceeded` if they would exceed a limit."""
        if self._limits is None:
            self.usage.tool_calls += calls
            return
        from copy import copy

        projected = copy(self.usage)
        projected.tool_calls += calls
        self._limits.check_before_tool_call(projected)
        self.usage.tool_calls += calls

    def after_request(self, response: Any) -> None:
        """Count a response. Raises `UsageLimitExceeded` if it exceeded a limit."""
        self.usage.incr(response.usage)
        self.usage.requests += 1
        if self._limits is not None:
            self._limits.check_tokens(self.usage)

    def note(self, response: Any) -> dict[str, Any]:
        """Return the usage of a step to store, in case the turn is interrupted; empty without limits."""
        if self._limits is None:
            return {}
        used = {name: getattr(response.usage, name, 0) or 0 for name in _COUNTED}
        spent: dict[str, Any] = {name: count for name, count in used.items() if count}
        cost = getattr(response.usage, "cost", None)
        return {**spent, "cost": str(cost)} if isinstance(cost, Decimal) else spent

    def count(self, message: Mapping[str, Any]) -> int:
        """Count the usage that earlier attempts stored in their message. Returns the number of its steps."""
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
        """Add an estimate for an interrupted request, from its messages and its partial answer."""
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
    """Estimate the number of tokens: one for four characters."""
    return len(json.encode(list(parts))) // 4 if parts else 0
