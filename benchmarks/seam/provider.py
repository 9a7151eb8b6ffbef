"""A provider whose models misbehave: an OpenAI-compatible server, the same one for all systems.

Each conversation has an address of its own. Asked for the first time, the model says the pieces up to the cut
and falls silent, until whoever asked is killed. Asked the same again, it says the whole answer. Asked to
continue, or handed the beginning, it says what its misbehaviour makes of that, fifty pieces a second.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.processes import free_port
from benchmarks.seam.misbehaviours import (
    SCRIPTS,
    WRONG,
    Misbehaviour,
    go_on,
    markdown,
    obey,
    prose,
    repeat_everything,
    stop_at_once,
)

PIECE = 4  # characters, about a token
QUICKLY, AT_PACE = 0.002, 0.02  # seconds between pieces, before the cut and after it
LENGTHS = (150, 500, 1000)  # characters of an answer
SHORTEST = 12  # characters before the cut
QUESTION = "Tell me something."


@dataclass
class Conversation:
    """One answer, where it is cut, and what the model makes of the request to continue it."""

    id: str
    whole: str
    first: Sequence[str]  # the pieces before the cut
    behave: Misbehaviour | None = None  # None: a real model continues
    script: str = "en"
    question: str = QUESTION
    asked: int = 0
    handed: str | None = None  # the beginning, as the model was given it; None: it was not
    said: str = ""  # then
    rest: str = ""  # what of this is the continuation
    new_at: float | None = None  # when the first new character was sent
    chance: random.Random = field(default_factory=random.Random)

    @property
    def seen(self) -> str:
        """What the reader has seen when the process dies."""
        return "".join(self.first)

    @property
    def is_wrong(self) -> bool:
        """Whether the model begins another answer."""
        return self.behave in WRONG

    def answer(self, messages: Sequence[Any]) -> tuple[list[str], float, bool]:
        """The pieces for this request, the pause between them, and whether the model falls silent then."""
        self.asked += 1
        handed = _handed(messages)
        if handed is None:
            is_first = self.asked == 1
            return (list(self.first), QUICKLY, True) if is_first else (cut_up(self.whole), 0, False)
        self.handed, self.rest = handed, self.whole[len(handed) :]
        self.said = self._continued(handed, messages[-1])
        return cut_up(self.said), AT_PACE, False

    def _continued(self, handed: str, last: Any) -> str:
        from outlast.chat.seam.instruct import is_begin_again

        assert self.behave is not None
        behave, asked = self.behave, _text(last)
        if behave is obey and "<tail>" not in asked:  # it does what it is asked for
            behave = repeat_everything if is_begin_again(asked) else go_on
        if behave is stop_at_once:
            self.rest = ""
        return behave(self.chance, self.script, handed, self.rest)

    def sends(self, place: int) -> None:
        """Note when the first new character is sent: the piece that begins here is next."""
        new = 0 if self.is_wrong else len(self.said) - len(self.rest)
        if self.new_at is None and place <= new < place + PIECE:
            self.new_at = time.monotonic()


def conversations(behave: Misbehaviour, n: int) -> list[Conversation]:
    """n random answers that are cut at random places, the same ones in every run."""
    found = []
    for i in range(n):
        chance = random.Random(f"{behave.__name__} {i}")
        script = chance.choice(SCRIPTS)
        text = chance.choice((prose, markdown))(chance, script, chance.choice(LENGTHS))
        first = cut_up(text[: chance.randint(SHORTEST, len(text) - 1)])
        found.append(Conversation(f"c{i}", text, first, behave, script, chance=chance))
    return found


def cut_up(text: str) -> list[str]:
    """A text as it is streamed."""
    return [text[place : place + PIECE] for place in range(0, len(text), PIECE)]


def _handed(messages: Sequence[Any]) -> str | None:
    """The beginning of the answer in a request."""
    said = [_text(message) for message in messages if message["role"] == "assistant"]
    return "".join(said) if said else None


def _text(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@asynccontextmanager
async def serving(known: Sequence[Conversation]) -> AsyncIterator[str]:
    """A server with these conversations; yields its address, with `{id}` for a conversation."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    by_id = {each.id: each for each in known}

    async def complete(request: Any) -> Any:
        found = by_id[request.path_params["id"]]
        pieces, pause, falls_silent = found.answer((await request.json())["messages"])
        events = streamed(found, pieces, pause, falls_silent)
        return StreamingResponse(events, media_type="text/event-stream")

    routes = [Route("/{id}/v1/chat/completions", complete, methods=["POST"])]
    port = free_port()
    config = uvicorn.Config(
        Starlette(routes=routes), port=port, log_level="critical", lifespan="off"
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}/{{id}}/v1"
    finally:
        server.should_exit = server.force_exit = True
        await running


async def streamed(
    found: Conversation, pieces: Sequence[str], pause: float, falls_silent: bool
) -> AsyncIterator[str]:
    """The events of a completion."""
    place = 0
    for piece in pieces:
        await asyncio.sleep(pause)
        if found.handed is not None:
            found.sends(place)
        place += len(piece)
        yield event({"role": "assistant", "content": piece})
    if falls_silent:
        await asyncio.Event().wait()  # until nobody is there any more
    yield event({}, "stop")
    yield "data: [DONE]\n\n"


def event(delta: dict[str, str], finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n"
