"""A model of a provider that does not take every tool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai.exceptions import ModelHTTPError, ModelRequestRejectedError

from outlast.testing import ScriptedModel


class Picky(ScriptedModel):
    """Refuses each request that offers one of these tools."""

    refuses: frozenset[str] = frozenset()
    says = "Invalid schema for function '{name}': 'x' is not valid."
    status = 400
    refused = 0  # requests

    @asynccontextmanager
    async def request_stream(
        self, messages: Any, settings: Any, parameters: Any, run_context: Any = None
    ) -> AsyncIterator[Any]:
        offered = [each.name for each in parameters.function_tools]
        for name in sorted(self.refuses.intersection(offered)):
            self.refused += 1
            place = offered.index(name)
            raise ModelHTTPError.for_category(
                ModelRequestRejectedError,
                status_code=self.status,
                model_name="picky",
                body={"error": {"message": self.says.format(name=name, place=place)}},
            )
        async with super().request_stream(messages, settings, parameters, run_context) as stream:
            yield stream
