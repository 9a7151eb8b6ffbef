"""The agent that the JavaScript clients are driven against: a deterministic model, tools of every kind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage

from outlast import App, Final, RpcError, Think, TurnConfig, rpc, tool
from outlast.agent.agent import parts_of
from outlast.chat.turn.state import TurnState
from outlast.testing import ScriptedModel, Step
from outlast.testing.steps import Text, Wait

TIMEZONE = {"name": "getUserTimezone", "description": "The user's time zone", "inputSchema": {}}
LOCALE = {"name": "getUserLocale", "description": "The user's locale", "inputSchema": {}}
CLIPBOARD = {"name": "readClipboard", "inputSchema": {}, "needsApproval": True}
EXPLODED = "fixture model exploded"


def words(count: int) -> str:
    return " ".join(f"w{n}" for n in range(1, count + 1))


def number(text: str, pattern: str, default: int) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else default


def prompt_of(messages: list[ModelMessage]) -> str:
    """What the user has said last; a request to go on is not theirs."""
    from outlast.chat.model.beginnings import asks_to_continue

    for message in reversed(messages):
        for part in reversed(message.parts):
            if part.part_kind == "user-prompt" and not asks_to_continue(part.content):
                content = part.content
                texts = [content] if isinstance(content, str) else content
                return " ".join(each for each in texts if isinstance(each, str))
    return ""


def after_prompt(messages: list[ModelMessage]) -> tuple[str, dict[str, Any]]:
    """What was answered to the last prompt so far: the text, and what tools have returned."""
    from outlast.chat.model.beginnings import asks_to_continue

    text, results = "", {}
    for message in messages:
        for part in message.parts:
            if part.part_kind == "user-prompt" and not asks_to_continue(part.content):
                text, results = "", {}
            elif part.part_kind == "text":
                text += part.content
            elif part.part_kind == "tool-return":
                results[part.tool_name] = part
    return text, results


def spoken(text: str, said: str, every: int) -> Step:
    """What is left to say, word by word."""
    rest = text.removeprefix(said) if text.startswith(said) else text
    chunks = re.findall(r"\S+\s*|\s+", rest)
    return Step.text(chunks=chunks, delay=every / 1000)


class Held(tuple[Any, ...]):
    """The pieces of an answer that does not go on after so many words until it is released."""

    words: int
    is_released: Callable[[], bool]

    def __iter__(self) -> Iterator[Any]:
        seen = 0
        for piece in super().__iter__():
            yield piece
            seen += isinstance(piece, Text)
            while seen == self.words and not self.is_released():
                yield Wait(0.005)


class FixtureModel:
    """The answers of the contract; and "held after N words", for tests that have to be in the middle."""

    def __init__(self) -> None:
        self.offered: frozenset[str] = frozenset()
        self.is_released = False

    def __call__(self, messages: list[ModelMessage]) -> Step:
        raw = prompt_of(messages)
        text = raw.lower()
        said, results = after_prompt(messages)
        every = number(text, r"every (\d+)ms", 2)
        wait = number(text, r"wait (\d+)ms", 0)
        step = self.step(raw, text, said, results, every)
        step = Step.stalls(wait / 1000) + step if wait else step
        held = number(text, r"held after (\d+) words", 0)
        return self.held(step, held) if held else step

    def held(self, step: Step, count: int) -> Step:
        pieces = Held(step.pieces)
        pieces.words, pieces.is_released = count, lambda: self.is_released
        self.is_released = False
        return replace(step, pieces=pieces)

    def step(self, raw: str, text: str, said: str, results: dict[str, Any], every: int) -> Step:
        def returned(name: str) -> Any:
            return results[name].content

        if "call server tool" in text:
            if "getWeather" not in results:
                return Step.calls("getWeather", city="Paris")
            return spoken("Weather in Paris is 21C.", said, every)
        if "call two client tools" in text:
            if "getUserTimezone" not in results or "getUserLocale" not in results:
                return Step.calls("getUserTimezone") + Step.calls("getUserLocale")
            both = f"{returned('getUserTimezone')} and locale {returned('getUserLocale')}"
            return spoken(f"Timezone {both}.", said, every)
        if "call careful client tool" in text:
            if "readClipboard" not in results:
                return Step.calls("readClipboard")
            denied = results["readClipboard"].outcome != "success"
            told = "nothing" if denied else returned("readClipboard")
            return spoken(f"You copied {told}.", said, every)
        if "call client tool" in text:
            if "getUserTimezone" not in results:
                return Step.calls("getUserTimezone")
            more = number(text, r"then say (\d+) words", 0)
            tail = f" {words(more)}" if more else ""
            return spoken(f"Your timezone is {returned('getUserTimezone')}.{tail}", said, every)
        if "call registered tool" in text:
            if "pickColor" in results:
                return spoken(f"You picked {returned('pickColor')}.", said, every)
            if "pickColor" in self.offered:
                return Step.calls("pickColor", hint="any")
            return spoken("No such tool.", said, every)
        if "need approval" in text:
            if "deleteFile" not in results:
                return Step.calls("deleteFile", path="/tmp/x")
            denied = results["deleteFile"].outcome != "success"
            answer = "Okay, I will not delete it." if denied else "Deleted /tmp/x."
            return spoken(answer, said, every)
        failing = re.search(r"fail after (\d+) words", text)
        if failing:
            return spoken(words(int(failing[1])) + " ", said, every) + Step.fails(
                RuntimeError(EXPLODED)
            )
        saying = re.search(r"say (\d+) words", text)
        if saying:
            answer = spoken(words(int(saying[1])), said, every)
            thinks = "think" in text and not said
            return Step.reasoning("Let me think. ") + answer if thinks else answer
        return spoken(f"You said: {raw}", said, every)


class FixtureAgent(Think):
    initial_state = {"counter": 0}
    max_steps = 5

    def __init__(self) -> None:
        self._answers = FixtureModel()
        self._model = ScriptedModel.answering(self._answers)

    def get_model(self) -> Any:
        return self._model

    def get_tools(self) -> Any:
        return [TIMEZONE, LOCALE, CLIPBOARD]

    async def on_connect(self, connection: Any) -> None:
        connection.read_only = connection.query.get("readonly") == "1"

    async def before_turn(self, context: Any) -> TurnConfig | None:
        self._answers.offered = frozenset(context.tools)
        last = prompt_of(list(context.messages)).lower()
        hold = number(last, r"hold (\d+)ms", 0)
        if hold:
            await asyncio.sleep(hold / 1000)
        return None

    async def before_step(self, context: Any) -> None:
        await self._count("model")
        if "emit data" in prompt_of(list(context.messages)).lower():
            self.emit_data("progress", {"at": 1}, transient=True)
            self.emit_data("note", {"n": 1}, id="n")
            context.writer.data("note", {"n": 2}, id="n")

    async def _count(self, what: str) -> None:
        stats = await self.storage.get("stats") or {}
        await self.storage.put("stats", {**stats, what: stats.get(what, 0) + 1})

    def on_chat_error(self, error: Exception, context: Any) -> Any:
        return RuntimeError(EXPLODED) if EXPLODED in str(error) else error

    @tool(effect="read", name="getWeather")
    async def get_weather(self, city: str) -> dict[str, Any]:
        """Current weather."""
        await self._count("getWeather")
        return {"city": city, "tempC": 21}

    @tool(name="deleteFile", needs_approval=True)
    async def delete_file(self, path: str) -> dict[str, Any]:
        """Delete a file."""
        await self._count("deleteFile")
        return {"deleted": path}

    # --- what clients may call -------------------------------------------------------------------

    @rpc
    async def add(self, a: float, b: float) -> float:
        return a + b

    @rpc
    async def echo(self, value: Any = None) -> Any:
        return value

    @rpc
    async def boom(self, message: str) -> None:
        raise RpcError(message)

    @rpc
    async def crash(self, message: str) -> None:
        raise RuntimeError(message)

    @rpc
    async def countTo(self, n: int) -> AsyncIterator[Any]:
        for each in range(1, n + 1):
            yield each
        yield Final({"total": n})

    @rpc
    async def countAndFail(self, n: int) -> AsyncIterator[Any]:
        for each in range(1, n + 1):
            yield each
        raise RpcError("stream exploded")

    @rpc
    async def setServerState(self, state: Any) -> bool:
        await self.set_state(state)
        return True

    @rpc
    async def startServerTurn(self, text: str) -> str:
        id = parts_of(self).activation.ids.new("message")
        message = {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}
        await self.submit_messages(message)
        return id

    @rpc
    async def setRecovering(self, recovering: bool) -> bool:
        parts_of(self)[TurnState].set_recovering("a request" if recovering else None)
        return True

    @rpc
    async def release(self) -> bool:
        """Let an answer that is held go on."""
        self._answers.is_released = True
        return True

    @rpc
    async def getStats(self) -> dict[str, int]:
        return await self.storage.get("stats") or {}

    @rpc
    async def getTranscript(self) -> list[Any]:
        return [message.raw for message in self.messages]

    async def notCallable(self) -> str:
        return "no"


FixtureAgent.sub_agents = [FixtureAgent]

app = App(agents=[FixtureAgent], store=None, origins="*")
