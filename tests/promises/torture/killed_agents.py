"""Agents for `outlast serve` whose worker is killed: one that gets on, one that does not.

Each request to a model is a line in the file that OUTLAST_ASKED names.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic_ai.messages import ModelMessage

from outlast import App, ChatRecovery, Think
from outlast.testing import ScriptedModel, Step

ANSWER = " ".join(f"word-{number}" for number in range(1, 151))  # at 20 ms each: 3 seconds
GIVEN_UP = "I give up."


def _asked(who: str) -> None:
    with Path(os.environ["OUTLAST_ASKED"]).open("a") as file:
        file.write(f"{who}\n")


def tell(messages: list[ModelMessage]) -> Step:
    """The rest of the story."""
    parts = [part for message in messages for part in message.parts if part.part_kind == "text"]
    told = "".join(str(part.content) for part in parts)
    assert ANSWER.startswith(told), "a model is shown what it has said, once"
    _asked("narrator")
    return Step.text(ANSWER[len(told) :], delay=0.02)


def be_silent(_: list[ModelMessage]) -> Step:
    _asked("silent")
    return Step.stalls()


class Narrator(Think):
    model = ScriptedModel.answering(tell)


class Silent(Think):
    """Never says anything. What bounds it is the clock, here in small."""

    model = ScriptedModel.answering(be_silent)
    chat_recovery = ChatRecovery(no_progress_timeout=10, terminal_message=GIVEN_UP)


app = App(agents=[Narrator, Silent], store=None)
