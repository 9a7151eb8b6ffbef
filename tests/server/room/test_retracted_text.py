"""Words that are taken back: whoever resumes is not shown them, and whoever has seen them is told."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest
from pydantic_ai.exceptions import ModelHTTPError
from tabs import ACK, MESSAGES, RESUMING, served, text_of

from outlast import ContextOverflow, Session, Think
from outlast.chat.message.reducer import MessageBuilder
from outlast.testing import ScriptedModel, Step

TOO_LONG = ModelHTTPError(400, "m", {"error": {"message": "prompt is too long: 9 > 5 maximum"}})
pytestmark = pytest.mark.invariant("E24", "N2", "N3")


ANSWER = "It was said anew and takes its time"


def said(messages: Any) -> Step:
    """The second answer is too much for the model in the middle; with a summary it is not."""
    if "They greeted." in str(messages):
        return Step.text(ANSWER, delay=0.05)
    if "And now?" in str(messages):
        return Step.text("Ghosts of words") + Step.fails(TOO_LONG)
    return Step.text("Hello.")


class Talker(Think):
    model = ScriptedModel.answering(said)
    context_overflow = ContextOverflow(reactive=True)

    def configure_session(self, session: Session) -> Session:
        return session.on_compaction(lambda messages: "They greeted.")


def built(chunks: list[dict[str, Any]]) -> str:
    builder = MessageBuilder()
    for chunk in chunks:
        builder.apply(chunk)
    return text_of(builder.message())


async def test_who_resumes_is_not_shown_what_was_taken_back(store_url: str) -> None:
    async with (
        served(Talker, url=store_url) as server,
        server.tab(path="/agents/talker/a") as owner,
    ):
        for n in range(4):
            await owner.answered(f"hello{n}", "Hi")
        await owner.say("r1", "And now?")
        await owner.until(lambda: "anew" in owner.text("r1"))
        async with server.tab(path="/agents/talker/a") as late:
            await late.wait(RESUMING, id="r1")
            await late.send(ACK, id="r1")
            await late.done("r1")
            assert late.text("r1") == ANSWER
            assert text_of(late.all(MESSAGES)[-1]["messages"][-1]) == ANSWER
        kinds = [chunk["type"] for chunk in owner.chunks("r1")]
        assert "Ghosts" in owner.text("r1"), "this tab has seen them"
        assert kinds.index("reset-step") == kinds.index("start", 1) - 1, "and they are taken back"
        assert kinds.count("finish") == 1
        assert built(owner.chunks("r1")) == ANSWER
        # The same when all is over, by the socket and by plain server-sent events.
        async with server.tab(path="/agents/talker/a") as later:
            await later.send(ACK, id="r1")
            await later.done("r1")
            assert later.text("r1") == ANSWER
        url = server.at("a", "chat", "stream?requestId=r1", agent="talker")
        async with httpx.AsyncClient() as client:
            found = await client.get(url)
            lines = [each[6:] for each in found.text.splitlines() if each.startswith("data: {")]
            assert built([json.loads(line) for line in lines]) == ANSWER
            assert "Ghosts" not in found.text
