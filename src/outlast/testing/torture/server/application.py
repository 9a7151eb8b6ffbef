"""The application that is tortured: run by `outlast serve outlast.testing.torture.server.application:app`.

The environment says where the journal is, and how it runs out of memory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import zlib
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage

from outlast.agent.rpc import rpc
from outlast.chat.tools.declare import ToolCall, tool
from outlast.chat.types.recovery import ChatRecovery
from outlast.server.app import App
from outlast.testing.scripted import ScriptedModel
from outlast.testing.steps import Step
from outlast.testing.torture.journal import Journal
from outlast.testing.torture.plan import Plan, words_in
from outlast.testing.torture.server import sabotage
from outlast.testing.torture.server.environment import JOURNAL, MEMORY, SABOTAGE
from outlast.testing.torture.server.memory import BY_LIMIT, exhaust
from outlast.testing.torture.users.requests import problems, prompts
from outlast.think import Think

journal = Journal(Path(os.environ.get(JOURNAL, os.devnull)))


def answer(messages: list[ModelMessage]) -> Step:
    """What is left of the plan in the last message of a user."""
    plan, text, answered = _situation(messages)
    wrong = problems(messages)
    if plan is None:
        journal.write("request", turn="", wrong=[*wrong, "there is no plan in it"])
        return Step.text("I have no plan.")
    said = len(words_in(text, plan.label))
    journal.write("request", turn=plan.label, said=said, wrong=wrong, worker=os.getpid())
    words, calls = plan.rest(said, answered)
    step = Step.text(chunks=words, delay=plan.every / 1000)
    for name, label in calls:
        step += Step.calls(name, label=label)
    return step


def _situation(messages: list[ModelMessage]) -> tuple[Plan | None, str, set[str]]:
    """The plan of the turn, the text that there is of it, and the calls that have a result."""
    plan: Plan | None = None
    text, answered = "", set[str]()
    labels: dict[str, str] = {}  # by the id of a call
    for message in messages:
        for prompt in prompts(message):
            plan, text, answered = Plan.of(prompt), "", set()
        for part in message.parts:
            if part.part_kind == "text":
                text += part.content
            elif part.part_kind == "tool-call":
                labels[part.tool_call_id] = str(part.args_as_dict().get("label"))
            elif part.part_kind in ("tool-return", "retry-prompt"):
                answered.add(labels.get(part.tool_call_id or "", ""))
    return plan, text, answered


async def _effect(tool: str, label: str, call: ToolCall) -> str:
    """What cannot be taken back, between two moments in which a death hurts."""
    pause = zlib.crc32(label.encode()) % 60 / 1000
    await asyncio.sleep(pause / 4)
    journal.write("effect", sync=True, tool=tool, label=label, key=call.idempotency_key)
    await asyncio.sleep(pause)
    return f"did {label}"


class Chatter(Think):
    """Does what its users' messages say."""

    model = ScriptedModel.answering(answer)
    system_prompt = "Do what the plan says."
    # Half of what it is by default: a machine is busy, and a database away, for a good part of a minute.
    chat_recovery = ChatRecovery(no_progress_timeout=150)

    @tool(effect="once")
    async def once(self, label: str, call: ToolCall) -> str:
        """Must not happen twice."""
        return await _effect("once", label, call)

    @tool(effect="idempotent")
    async def idempotent(self, label: str, call: ToolCall) -> str:
        """May happen again, with the same key."""
        return await _effect("idempotent", label, call)

    @tool(effect="read")
    async def read(self, label: str, call: ToolCall) -> str:
        """May happen again."""
        return await _effect("read", label, call)

    @tool(effect="once", needs_approval=True)
    async def asks(self, label: str, call: ToolCall) -> str:
        """Must not happen twice, nor before somebody allows it."""
        return await _effect("asks", label, call)

    @rpc
    async def stable(self) -> bool:
        """Whether nothing is under way and nobody is waited for, within a moment."""
        return await self.wait_until_stable(timeout=2)

    @rpc
    async def incidents(self) -> list[dict[str, Any]]:
        """What was interrupted and goes on, or was given up."""
        found = await self.list_incidents()
        return [{"request": each.request_id, "state": each.state} for each in found]


class Poison(Think):
    """Its only tool kills the process."""

    model = ScriptedModel(Step.calls("die"), by="request", repeat=True)

    @tool(effect="read")
    async def die(self) -> None:
        """Kill this process."""
        os.kill(os.getpid(), signal.SIGKILL)


def _run_out_of_memory(*_: object) -> None:
    exhaust(by_limit=os.environ.get(MEMORY) == BY_LIMIT)


if JOURNAL in os.environ:  # not for whoever only looks at this module
    signal.signal(signal.SIGUSR1, _run_out_of_memory)
    sabotage.apply(os.environ.get(SABOTAGE))

app = App(agents=[Chatter, Poison], store=None)
