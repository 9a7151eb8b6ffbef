"""Running commands in tests: as a user would, but in this process."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from outlast.cli.main import app


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def outlast(*arguments: str, **environment: str) -> Ran:
    """Run a command. It must not fail with a traceback."""
    result = CliRunner().invoke(app, arguments, env=environment or None)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


async def beside(*arguments: str, **environment: str) -> Ran:
    """The same beside a host of this loop: in a thread, with a loop of its own."""
    return await asyncio.to_thread(outlast, *arguments, **environment)
