"""What becomes of tools when their process is killed: one for each effect, and one that finds out.

python examples/tools_with_effects.py            kills a worker in the middle of its tools, starts another
python examples/tools_with_effects.py --worker   what it starts and kills

The world outside is a folder: every time a tool does something there, it adds a line to a file. So it can be
counted how often it was really done.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from outlast import Host, NotDone, Think, ToolCall, tool
from outlast.testing import ScriptedModel

TOOLS = ["look_up", "set_price", "send_mail", "charge"]
WORLD = Path(os.environ.get("WORLD", "."))


def do(what: str) -> None:
    """Something happens, outside, and can be counted."""
    with (WORLD / what).open("a") as file:
        file.write("done\n")


async def answer_of_the_other_side() -> None:
    """It takes its time, and that is when the process is killed. The second time it is quick."""
    is_first_life = not (WORLD / "second life").exists()
    await asyncio.sleep(3600 if is_first_life else 0)


async def was_it_charged(call: ToolCall) -> str | NotDone:
    """Asks the bank. It knows, for it was given the call's key."""
    return "charged" if (WORLD / f"charge {call.idempotency_key}").exists() else NotDone()


class Clerk(Think):
    def get_model(self) -> ScriptedModel:
        return ScriptedModel.calls(self.name).then("That is what I know.")  # calls one of the tools

    @tool(effect="read")
    async def look_up(self) -> str:
        """Changes nothing: it is run again."""
        do("look_up")
        await answer_of_the_other_side()
        return "42"

    @tool(effect="idempotent")
    async def set_price(self, idempotency_key: str) -> str:
        """Twice is like once: it is run again, with the same key."""
        do("set_price")
        (WORLD / f"set_price {idempotency_key}").touch()
        await answer_of_the_other_side()
        return "set"

    @tool(effect="once")
    async def send_mail(self) -> str:
        """Must not happen twice: it is not run again, and nobody claims to know."""
        do("send_mail")
        await answer_of_the_other_side()
        return "sent"

    @tool(effect="once", reconcile=was_it_charged)
    async def charge(self, call: ToolCall) -> str:
        """Must not happen twice, and the other side can be asked."""
        do("charge")
        (WORLD / f"charge {call.idempotency_key}").touch()
        await answer_of_the_other_side()
        return "charged"


async def work() -> None:
    """One life: asks for each tool, once over all lives, and waits until everything has ended."""
    async with Host(agents=[Clerk], store=f"sqlite:///{WORLD}/store.db") as host:
        for name in TOOLS:
            await host.get(Clerk, name).submit_messages("Please", idempotency_key="only once")
        await host.until_settled()
        for name in TOOLS:
            parts = (await host.get(Clerk, name).get_messages())[-1].parts
            part = next(part for part in parts if part["type"] == f"tool-{name}")
            times = len((WORLD / name).read_text().splitlines())
            told = part.get("output") or part.get("errorText")
            print(f"{name:10} done {times}x   told: {told}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker"]
        environment = {**os.environ, "WORLD": folder}
        first = subprocess.Popen(command, env=environment)
        while not all((Path(folder) / name).exists() for name in TOOLS):
            time.sleep(0.02)
        first.kill()
        first.wait()
        print("kill -9, in the middle of four tools\n", flush=True)
        (Path(folder) / "second life").touch()
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        asyncio.run(work())
    else:
        main()
