"""An agent that learns a fact, is killed with SIGKILL in the middle of its answer, and knows the fact.

python examples/remembers.py            kills a worker, starts another one
python examples/remembers.py --worker   what it starts and kills

The conversation is cleared before the agent is asked: it knows the fact from its memory, a context block.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from outlast import Host, Session, Think
from outlast.testing import ScriptedModel, Step

FACT = "Remember: my favourite birds are owls."
QUESTION = "What are my favourite birds?"
FOLDER = os.environ.get("FOLDER", ".")
IS_FIRST = os.environ.get("PROCESS") == "first"


def write_down_or_answer(messages: Sequence[Any]) -> Step:
    """Stand in for a model: write facts down, and answer from the system prompt."""
    said = " ".join(str(part.content) for part in messages[-1].parts)
    if said.startswith("Remember: "):
        fact = f"Fact: {said.removeprefix('Remember: ')}"
        return Step.calls("set_context", label="memory", content=fact, action="append")
    known = [line for line in messages[-1].instructions.splitlines() if line.startswith("Fact: ")]
    return Step.text(f"You said: {known[0].removeprefix('Fact: ')}" if known else "I do not know.")


class Assistant(Think):
    model = ScriptedModel(
        write_down_or_answer,
        # The first process is killed during the pause.
        Step.text("I have written ") + Step.stalls(60 if IS_FIRST else 0) + Step.text("that down."),
    )

    def configure_session(self, session: Session) -> Session:
        return session.with_system_prompt("You are an assistant with a memory.").with_context(
            "memory", description="Facts about the user", max_tokens=1000
        )

    async def memory(self) -> str:
        block = await self.session.get_context_block("memory")
        return "" if block is None else block.content


async def work() -> None:
    """Learn the fact, once over all processes; forget the conversation; ask."""
    async with Host(agents=[Assistant], store=f"sqlite:///{FOLDER}/store.db") as host:
        alice = host.get(Assistant, "alice")
        async for chunk in alice.stream(FACT, idempotency_key="the fact"):
            print(chunk.get("delta", ""), end="", flush=True)
        print(f"\n\nin its memory: {await alice.memory()}")
        await alice.clear_messages()
        await alice.save_messages(QUESTION)
        print(f"\n> {QUESTION}\n{(await alice.get_messages())[-1].text}")


def main() -> None:
    command = [sys.executable, __file__, "--worker"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FOLDER": folder}
        print(f"> {FACT}", flush=True)
        first = subprocess.Popen(
            command, env={**environment, "PROCESS": "first"}, stdout=subprocess.PIPE, text=True
        )
        assert first.stdout is not None
        print(first.stdout.read(len("I have written")), flush=True)
        first.kill()
        first.wait()
        print("\nkill -9, in the middle of the answer\n", flush=True)
        subprocess.run(command, env={**environment, "PROCESS": "second"}, check=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        asyncio.run(work())
    else:
        main()
