"""The agent of the demo."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outlast.chat.tools.declare import ToolCall, tool
from outlast.chat.types.config import TurnConfig, TurnContext
from outlast.core.clock import SystemClock
from outlast.demo.local_model import model_at
from outlast.demo.model import EmbeddedModel
from outlast.demo.settings import EMBEDDED, LOCAL, DemoSettings
from outlast.server.pages.pages import Page, Suggestion
from outlast.think import Think

WAY = 2.5  # seconds to the post box and as many back, which leaves time to kill the server
POSTCARDS = "postcards.txt"

PROMPT = """You are the assistant of a demo of outlast, a framework for agents that outlast the process
they run in. Your users press a button that kills your server while you answer. Answer at length when you are
asked for something long. Use your tools when you are asked to: send_postcard, delete_files, browser_time.
When the outcome of a call is unknown, say so, and do not repeat the call unless you are asked to."""

# The local model is too small for tools and for more than one sentence of instructions.
LOCAL_PROMPT = "You are a helpful assistant. You answer at length."
LOCAL_TOKENS = 400
LOCAL_TEMPERATURE = 0.5

LOCAL_SUGGESTIONS: Sequence[Suggestion] = (
    Suggestion(
        "Tell me a long story",
        "Tell me a long story about a lighthouse.",
        "Then kill the server in the middle of it",
    ),
    Suggestion(
        "Explain something",
        "Explain how rain forms.",
        "A real model, and a small one: do not believe it",
    ),
    Suggestion("Write a list", "List ten things to pack for a journey.", "Markdown through a kill"),
)

SUGGESTIONS: Sequence[Suggestion] = (
    Suggestion(
        "Tell me a long story", "Tell me a long story.", "Then kill the server in the middle of it"
    ),
    Suggestion(
        "Send a postcard", "Send a postcard.", "Counted in a file: never sent twice automatically"
    ),
    Suggestion("Delete my files", "Delete my files.", "Asks for your approval first"),
    Suggestion(
        "What is my time?", "What time is it in my browser?", "A tool that runs on this page"
    ),
    Suggestion(
        "Think hard",
        "Think hard: can something be fast and safe?",
        "Shows its reasoning as it streams",
    ),
    Suggestion("Show me code", "Show me code.", "Code, a table, and how to build this"),
)

PAGE = Page(
    title="outlast",
    intro="Ask for something long. While the answer streams, press “Kill the server”: that is a real "
    "kill -9. Then watch the sentence finish.",
    suggestions=SUGGESTIONS,
    browser_tools=("browser_time",),
    dev=True,
    demo=True,
)


class Assistant(Think):
    """An agent with tools of every kind: a counted side effect, an approval, a tool in the browser."""

    system_prompt = PROMPT
    settings = DemoSettings()

    def get_model(self) -> Any:
        """Return the embedded model, unless the local one or a provider's was requested."""
        named = self.settings.model
        if named == LOCAL:
            return model_at(self.settings.url)
        return EmbeddedModel(self.settings.pace) if named == EMBEDDED else named

    async def before_turn(self, context: TurnContext) -> TurnConfig | None:
        """Limit the local model to what it can do."""
        if self.settings.model != LOCAL:
            return None
        return TurnConfig(
            system=LOCAL_PROMPT,
            active_tools=(),
            max_output_tokens=LOCAL_TOKENS,
            temperature=LOCAL_TEMPERATURE,
            continuation="prefill",
        )

    @tool(effect="once")
    async def send_postcard(self, to: str, text: str, call: ToolCall) -> dict[str, Any]:
        """Send a postcard. Each one is a line in a file, so that they can be counted."""
        way = WAY * min(1.0, self.settings.pace / 0.05)
        await asyncio.sleep(way)
        file = self.settings.folder / POSTCARDS
        count = await asyncio.to_thread(_post, file, f"{SystemClock().now()} {to}: {text}")
        await asyncio.sleep(way)
        return {"sent": True, "postcards_sent": count, "file": f"{file.parent.name}/{file.name}"}

    @tool(needs_approval=True)
    async def delete_files(self, folder: str) -> dict[str, Any]:
        """Delete the files in a folder. (It only says so: nothing is ever deleted.)"""
        await asyncio.sleep(min(1.0, self.settings.pace * 10))
        return {"folder": folder, "deleted": 3, "really": False}


def _post(file: Path, line: str) -> int:
    """Append a line, and return the number of lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as postcards:
        postcards.write(f"{line}\n")
    return len(file.read_text(encoding="utf-8").splitlines())
