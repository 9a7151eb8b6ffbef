"""What the users do: talk, allow and refuse, stop, talk over one another."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from contextlib import AsyncExitStack

from outlast.client import CallFailed, TurnFailed
from outlast.testing.torture.journal import Journal
from outlast.testing.torture.plan import Plan, random_plan
from outlast.testing.torture.users.watcher import Conversation, Turn, Watcher

TURNS = 8  # in one conversation; then its user goes on with another agent

OFF_WITHIN = 15.0  # seconds until a tab shows that nothing is under way


class User:
    """One conversation with one agent, by one client or two."""

    def __init__(
        self, url: str, conversation: Conversation, chance: random.Random, journal: Journal
    ) -> None:
        self._url = url
        self._conversation = conversation
        self._chance = chance
        self._journal = journal

    async def talk(self, stopping: asyncio.Event, turns: int = TURNS) -> None:
        """Until it is time to stop, or that is enough. Ends when the agent is stable."""
        async with AsyncExitStack() as stack:
            tabs = [Watcher(self._url, self._conversation)]
            if self._chance.random() < 0.4:
                tabs.append(Watcher(self._url, self._conversation, 1))
            for tab in tabs:
                await stack.enter_async_context(tab)
            client = tabs[0]
            for number in range(turns):
                await self._turn(client, f"{self._conversation.agent}-{number}")
                if stopping.is_set():
                    break
                await asyncio.sleep(self._chance.uniform(0, 0.3))
            await self._end(client)
            await stable(client)
            for tab in tabs:
                await self._look_at(tab)

    async def _look_at(self, tab: Watcher) -> None:
        """Nothing is under way: every indicator goes off, at the latest when what was sent has arrived."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OFF_WITHIN):
                while tab.indicators:  # noqa: ASYNC110 (nobody tells)
                    await asyncio.sleep(0.02)
        self._conversation.spinning += [f"a tab shows: {each}" for each in tab.indicators]

    async def _turn(self, client: Watcher, label: str) -> None:
        what = self._chance.choices(("plain", "cancelled", "over another"), weights=(6, 2, 2))[0]
        if what == "over another":
            first = random_plan(f"{label}a", self._chance, may_ask=False)
            second = random_plan(f"{label}b", self._chance, may_ask=False)
            heard = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._say(client, first, heard=heard))
                await heard.wait()
                group.create_task(self._say(client, second, is_behind=True))
            return
        plan = random_plan(label, self._chance)
        stop_after = self._chance.randint(1, 30) if what == "cancelled" else None
        decision = self._chance.choices(("allow", "refuse", "ignore"), weights=(6, 3, 2))[0]
        turn = await self._say(client, plan, stop_after=stop_after)
        if turn.asked and turn.end == "done":
            await self._decide(client, turn, "ignore" if turn.is_cancelled else decision)

    async def _say(
        self,
        client: Watcher,
        plan: Plan,
        *,
        stop_after: int | None = None,
        heard: asyncio.Event | None = None,
        is_behind: bool = False,
    ) -> Turn:
        turn = Turn(plan, f"{plan.label}~{secrets.token_hex(3)}", is_behind)
        self._conversation.turns.append(turn)
        self._journal.write(
            "said", agent=self._conversation.agent, turn=plan.label, text=plan.prompt
        )
        try:
            async with contextlib.aclosing(
                client.send(plan.prompt, request_id=turn.request)
            ) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    turn.hear(chunk)
                    if heard is not None:
                        heard.set()
                    if turn.chunks == stop_after:
                        turn.is_cancelled = True
                        self._journal.write("stop", turn=plan.label)
                        await client.cancel(turn.request)
            turn.close("done")
        except TurnFailed as error:
            turn.close(f"failed: {error}")
        finally:
            if heard is not None:
                heard.set()
        self._journal.write("end", turn=plan.label, end=turn.end, chunks=turn.chunks)
        return turn

    async def _decide(self, client: Watcher, turn: Turn, decision: str) -> None:
        self._journal.write("approval", turn=turn.plan.label, decision=decision)
        if decision == "ignore":
            turn.is_ignored = True
            return
        for call in turn.asked:
            turn.decisions[call] = decision == "allow"
            await client.add_tool_approval(call, decision == "allow")
        await stable(client)

    async def _end(self, client: Watcher) -> None:
        """What nobody has answered would wait for ever: say something that closes it."""
        if self._conversation.turns and self._conversation.turns[-1].is_ignored:
            plan = Plan(f"{self._conversation.agent}-last", (3,))
            await self._say(client, plan)


async def stable(client: Watcher) -> None:
    """Wait until nothing is under way, and nobody is waited for."""
    while True:
        try:
            if await client.call("stable"):
                return
        except CallFailed:  # the worker has died meanwhile
            await asyncio.sleep(0.05)
