"""A process with many conversations that is killed: `python -m benchmarks.seam.worker PLAN`.

It tells what a reader of each conversation is shown, a line of JSON for each thing, and what is stored at the
end. A first life asks; a later one goes on with what the first has left behind.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MOST_TOKENS = 120


@dataclass(frozen=True)
class Plan:
    """What such a process is told."""

    system: str
    directory: str
    url: str  # of the provider, with `{id}` for the conversation
    questions: dict[str, str]  # by conversation
    is_first: bool = True
    way: str | None = None  # of continuing; None: the best one

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def tell(id: str, **what: Any) -> None:
    print(json.dumps({"id": id, "at": time.monotonic(), **what}), flush=True)


async def run_ours(plan: Plan) -> None:
    from outlast import Host, Think, TurnConfig
    from outlast.demo.local_model import model_at

    class Talker(Think):
        continuation: Any = plan.way
        system_prompt = "You are a helpful assistant."

        def get_model(self) -> Any:
            return model_at(plan.url.format(id=self.name))

        async def before_turn(self, context: Any) -> TurnConfig:
            return TurnConfig(temperature=0.0, seed=1, max_output_tokens=MOST_TOKENS)

    path = Path(plan.directory) / "store.db"

    async def follow(host: Host, id: str, question: str) -> None:
        agent = host.get(Talker, id)
        if plan.is_first:
            await agent.submit_messages(question, submission_id=id)
        async for _, chunk in agent.resume_stream(id):
            if chunk["type"] == "text-delta":
                tell(id, delta=chunk["delta"])
            elif chunk["type"] == "reset-step":
                tell(id, reset=True)
        text = (await agent.get_messages())[-1].text
        tell(id, final=text, seam=seam_of(path, id))

    async with Host([Talker], f"sqlite:///{path}") as host:
        await asyncio.gather(*(follow(host, *each) for each in plan.questions.items()))


def seam_of(path: Path, turn: str) -> str:
    """How the text was joined, as the decision has it."""
    with sqlite3.connect(path) as db:
        bodies = db.execute("select body from decisions where agent like ?", [f"%/{turn}"])
        seams = [json.loads(body).get("seam") or {} for (body,) in bodies]
    return str(seams[-1].get("kind", "")) if seams else ""


async def asked(url: str, question: str) -> AsyncIterator[str]:
    """What the provider says to a question, for those who do not ask it to continue."""
    import aiohttp

    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": question}]}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/chat/completions", json=body) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    piece = json.loads(line[6:])["choices"][0]["delta"].get("content")
                    if piece:
                        yield piece


async def run_peer(plan: Plan) -> None:
    """LangGraph or DBOS, which run the interrupted step again."""
    from benchmarks.recovery.dbos import Workflows
    from benchmarks.recovery.langgraph import Threads

    def speak(id: str) -> AsyncIterator[str]:
        return asked(plan.url.format(id=id), plan.questions[id])

    talker: Any = (Threads if plan.system == "langgraph" else Workflows)(plan.directory, speak)

    async def follow(id: str) -> None:
        if plan.is_first:
            await talker.begin(id)
        elif plan.system == "langgraph":
            tell(id, reset=True)  # its stream begins anew
        async for said in talker.words(id):
            tell(id, delta=said)
        tell(id, final=await talker.stored(id))

    async with talker.running():
        await asyncio.gather(*map(follow, plan.questions))


def main(arguments: Sequence[str]) -> None:
    plan = Plan(**json.loads(arguments[0]))
    asyncio.run(run_ours(plan) if plan.system == "ours" else run_peer(plan))


if __name__ == "__main__":
    main(sys.argv[1:])
