"""Work that takes long: a fiber of many steps, which goes on where it was, in whichever process comes next.

python examples/research.py owls      kill it whenever you like, and run it again
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from outlast import Agent, FiberContext, FiberRecoveryContext, Host

SOURCES = [f"source {number}" for number in range(1, 11)]
PACE = float(os.environ.get("PACE", "1"))  # seconds a source


class Researcher(Agent):
    async def research(self, topic: str) -> None:
        plan = {"topic": topic, "read": []}
        await self.start_fiber("research", self.work, plan, id=topic)  # joins one that is there

    async def work(self, fiber: FiberContext, plan: dict[str, Any]) -> None:
        for source in SOURCES[len(plan["read"]) :]:
            print(f"reading {source}", flush=True)
            await asyncio.sleep(PACE)  # what takes long: a model, a download, another service
            plan["read"].append(source)
            async with self.commit():  # what was found and how far it is: together, or not at all
                await self.storage.put(f"{plan['topic']}: {source}", f"what {source} says")
                await fiber.stash(plan)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        print(f"going on after {len(fiber.snapshot['read'])} of {len(SOURCES)}", flush=True)
        fiber.resume(self.work)

    async def notes(self, topic: str) -> dict[str, str]:
        return await self.storage.list(f"{topic}: ")


async def main(topic: str) -> None:
    async with Host(agents=[Researcher], store="sqlite:///research.db") as host:
        researcher = host.get(Researcher, "me")
        await researcher.research(topic)
        await host.until_settled()
        print(f"{len(await researcher.notes(topic))} notes about {topic}")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "owls"))
