"""The server whose disk is recorded: python power_server.py <port> <store's URL>.

Everything that it stores and tells has a name of its own, a *token* (power_judge.py). Those that leave by no
socket, tool calls that begin and acknowledged commits, are written to the file `shown` (power_writer.py).
"""

from __future__ import annotations

import asyncio
import sys

from chat_rows import prompts_of
from power_writer import checkpoint_often, record_acknowledgements, show
from pydantic_ai.messages import ModelMessage

from outlast import App, Think, ToolCall, rpc, tool
from outlast.server.uvicorn_server import Server
from outlast.testing import ScriptedModel, Step

WORDS = 20
PACE = 0.002  # seconds a word
began: list[str] = []  # tool calls, in this process


def asked(messages: list[ModelMessage]) -> str:
    """What the current turn is called: `a-0` for the question `ask-a-0`."""
    return prompts_of(messages)[-1].removeprefix("ask-")


def words(turn: str, first: int, last: int) -> str:
    return " ".join(f"word-{turn}-{n}" for n in range(first, last)) + " "


def answer_of(turn: str) -> str:
    """All that is said in a turn."""
    return words(turn, 0, 3) + words(turn, 3, WORDS)


def begin(messages: list[ModelMessage]) -> Step:
    turn = asked(messages)
    said = Step.text(words(turn, 0, 3), delay=PACE)
    return said + Step.call("charge", {"for_": turn}, id=f"call-{turn}")


def go_on(messages: list[ModelMessage]) -> Step:
    return Step.text(words(asked(messages), 3, WORDS), delay=PACE)


class Talker(Think):
    model = ScriptedModel(begin, go_on)

    @tool(effect="once")
    async def charge(self, for_: str, call: ToolCall) -> str:
        """Charge."""
        if __name__ == "__main__":
            show(f"intent-{for_}")
        began.append(for_)
        return "charged"

    @rpc
    async def remember(self, key: str) -> str:
        await self.storage.put(key, "v" * 500)
        return key

    @rpc
    async def keys(self) -> list[str]:
        return list(await self.storage.list("key-"))


def main(port: int, store: str) -> None:
    checkpoint_often()
    record_acknowledgements()
    app = App(agents=[Talker], store=store)
    asyncio.run(Server(app, port=port, log_level="error", drain=3).serve())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
