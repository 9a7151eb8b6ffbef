"""A turn whose process is killed for real, in the middle of a tool: for tests that look at what is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from pydantic_ai.messages import ModelMessage

from outlast import Host, Think, ToolCall, tool
from outlast.testing import ScriptedModel, Step, Worker

QUESTION = "What is the weather in Oslo?"


def answer(messages: list[ModelMessage]) -> Step:
    """Look, then pay, then say so."""
    called = [p.tool_name for m in messages for p in m.parts if p.part_kind == "tool-return"]
    if "look" not in called:
        return Step.text("Let me see. ") + Step.calls("look", city="Oslo")
    if "pay" not in called:
        return Step.calls("pay", amount=3)
    return Step.text("It is sunny.")


class Clerk(Think):
    model = ScriptedModel.answering(answer)

    @tool(effect="read")
    async def look(self, city: str) -> str:
        """Look out of the window."""
        return f"sunny in {city}"

    @tool(effect="once")
    async def pay(self, amount: int, call: ToolCall) -> str:
        """Pay. The process that does so dies of it."""
        if sys.argv[0].endswith("worker.py"):
            os.kill(os.getpid(), signal.SIGKILL)
        return "paid"


async def drive(host: Host) -> None:
    await host.get(Clerk, "a/ö").submit_messages(QUESTION, submission_id="weather-1")
    await asyncio.get_running_loop().create_future()


def kill_a_turn(url: str) -> str:
    """Ask, and die in the second call. Returns the id of the turn."""
    ended = Worker(agents=[Clerk], drive=drive, store=url).run()
    assert ended.killed
    return "weather-1"
