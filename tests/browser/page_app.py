"""What the tests of the page are served: the agent of tests/conformance with a page, and the demo's own."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from conformance.fixture_agent import FixtureAgent, FixtureModel
from outlast import App, BareThink, Session, rpc, tool
from outlast.demo import agent
from outlast.demo.settings import DemoSettings
from outlast.server.pages.pages import Page, Suggestion
from outlast.testing import ScriptedModel, Step

HOSTILE = (
    """<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">

# <svg onload="window.hacked = 3">

[click](javascript:window.hacked=4) [again](JaVaScRiPt:alert(1)) [data](data:text/html,<script>1</script>)
<javascript:window.hacked=5> ![pixel](https://tracker.invalid/pixel.png) ![x](javascript:window.hacked=6)
[ok](https://example.org/page "title") https://example.org/bare. **bold <b>x</b>** `<i>code</i>`

```html
<script>window.hacked = 7</script>
```

| a <script>window.hacked = 8</script> | b |
| --- | --- |
| <iframe src="javascript:window.hacked=9"></iframe> | [x](vbscript:1) |

> quoted <style>body{display:none}</style>

- item <a href="javascript:window.hacked=10">x</a>
"""
    + "[" * 3000
    + "*_`" * 2000
)


class Answers(FixtureModel):
    def step(self, raw: str, text: str, said: str, results: dict[str, Any], every: int) -> Step:
        if text.startswith("hostile"):
            return Step.text(chunks=[HOSTILE])
        if text.startswith("megabyte"):
            return Step.text(chunks=["begin " + "x" * 1_000_000, " end"])
        fetching = re.match(r"fetch (\d+)", text)
        if fetching:
            size = int(fetching[1])
            return Step.text("Fetched.") if "fetch" in results else Step.calls("fetch", size=size)
        if text.startswith("slow tool"):
            return Step.text("Done.") if "stamp" in results else Step.calls("stamp", times=1)
        if text.startswith("markdown"):
            return Step.text(chunks=[raw.partition("\n")[2]])
        return super().step(raw, text, said, results, every)


class PageAgent(FixtureAgent):
    """Answers as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = Answers()
        self._model = ScriptedModel.answering(self._answers)

    @rpc
    async def fill(self, start: int, end: int, size: int) -> None:
        """Add the messages from m<start> to m<end - 1>, each with so many characters."""
        roles = ("user", "assistant")
        await self.add_messages(
            [
                {
                    "id": f"m{n}",
                    "role": roles[n % 2],
                    "parts": [{"type": "text", "text": f"number {n} ".ljust(size, "y")}],
                }
                for n in range(start, end)
            ]
        )

    @tool(effect="read")
    async def fetch(self, size: int) -> dict[str, str]:
        """As much as is asked for."""
        return {"text": "f" * size + " the end"}

    @tool(effect="once")
    async def stamp(self, times: int) -> str:
        """Takes as long as it is let."""
        await asyncio.sleep(60)
        return "stamped"


PageAgent.sub_agents = []


class SessionAgent(PageAgent):
    """Summarises what it is told to, once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self._summary: asyncio.Future[str] = asyncio.Future()
        self._compaction: asyncio.Future[bool] | None = None

    def configure_session(self, session: Session) -> Session:
        return session.with_search().on_compaction(self._summarise).compact_after(1_000_000)

    async def _summarise(self, messages: Any) -> str:
        summary = await self._summary
        self._summary = asyncio.Future()
        if not summary:
            raise ValueError("There is no summary.")
        return summary

    @rpc
    async def start_compaction(self) -> None:
        """Begin a summary, which takes until `summarise`."""
        self._compaction = asyncio.ensure_future(self.session.compact())

    @rpc
    async def summarise(self, text: str) -> bool:
        """End a summary with a text, or with an error if that is empty."""
        assert self._compaction is not None
        self._summary.set_result(text)
        return await self._compaction


class BareAgent(BareThink):
    """Has no batteries."""

    model = ScriptedModel("Bare indeed.", repeat=True)


class Assistant(agent.Assistant):
    """The demo's, faster than anybody reads."""

    settings = DemoSettings(pace=0.004)


app = App(
    agents=[PageAgent, Assistant, SessionAgent, BareAgent],
    ui=Page(
        title="Tests",
        intro="This is a test.",
        suggestions=[Suggestion("Greet", "Hello!", "A greeting")],
        browser_tools=["browser_time"],
        dev=True,
    ),
    inspector=True,
)
