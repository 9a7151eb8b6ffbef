"""What cannot be asked is refused in words, before anything is stored."""

from __future__ import annotations

from typing import Any

import pytest
from conversation import answering, counts, talker

from outlast import Think
from support import World

pytestmark = pytest.mark.virtual_time

HI = {"role": "user", "parts": [{"type": "text", "text": "Hi"}]}


class Ear:
    def on_event(self, chunk: str) -> None: ...


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "a number": (lambda a: a.save_messages(5), TypeError, "got int"),
    "nothing": (lambda a: a.save_messages(None), TypeError, "got NoneType"),
    "bytes": (lambda a: a.chat(b"Hi", Ear()), TypeError, "got bytes"),
    "a role": (
        lambda a: a.save_messages({**HI, "role": "boss"}),
        ValueError,
        "role must be one of",
    ),
    "no parts": (lambda a: a.submit_messages({"role": "user"}), TypeError, "parts"),
    "a bad part": (
        lambda a: a.add_messages({"role": "user", "parts": [{"type": "text"}]}),
        TypeError,
        r"\['parts'\]\[0\]",
    ),
    "no JSON": (
        lambda a: a.save_messages({"role": "user", "parts": [{"type": "data-x", "data": {1, 2}}]}),
        TypeError,
        "is a set",
    ),
    "the same id twice": (
        lambda a: a.save_messages([{**HI, "id": "x"}, {**HI, "id": "x"}]),
        ValueError,
        "duplicate message id",
    ),
    "a blank id": (lambda a: a.save_messages({**HI, "id": " "}), ValueError, "blank"),
    "the second of two": (lambda a: a.save_messages(["Hi", 5]), TypeError, r"messages\[1\]"),
    "a blank key": (lambda a: a.save_messages("Hi", idempotency_key=" "), ValueError, "blank"),
    "a key with NUL": (
        lambda a: a.submit_messages("Hi", idempotency_key="\0"),
        ValueError,
        "blank|NUL",
    ),
    "a blank submission id": (
        lambda a: a.submit_messages("Hi", submission_id=""),
        ValueError,
        "submission_id",
    ),
    "a body that is no JSON": (
        lambda a: a.save_messages("Hi", body={"x": object()}),
        TypeError,
        r"body.*object",
    ),
    "metadata that is no JSON": (
        lambda a: a.submit_messages("Hi", metadata={1, 2}),
        TypeError,
        "metadata is a set",
    ),
    "a submitted function": (
        lambda a: a.submit_messages(lambda _: "Hi"),
        TypeError,
        "must not be a function",
    ),
    "an empty submission": (lambda a: a.submit_messages([]), ValueError, "empty"),
    "a message id that is no text": (
        lambda a: a.regenerate(5),
        ValueError,
        "message_id must be a str",
    ),
    "a mode": (lambda a: a.run_turn("Hi", mode="later"), ValueError, "wait, submit or stream"),
    "no input": (lambda a: a.run_turn(), ValueError, "messages must be given"),
    "both": (lambda a: a.run_turn("Hi", continuation=True), ValueError, "takes no messages"),
    "a continuation for later": (
        lambda a: a.run_turn(mode="submit", continuation=True),
        ValueError,
        "requires mode='wait'",
    ),
    "a stream without a callback": (
        lambda a: a.run_turn("Hi", mode="stream"),
        ValueError,
        "callback",
    ),
    "a callback without a stream": (
        lambda a: a.run_turn("Hi", callback=Ear()),
        ValueError,
        "callback",
    ),
    "a function for later": (
        lambda a: a.run_turn(lambda _: "Hi", mode="submit"),
        TypeError,
        "function",
    ),
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_cannot_be_asked_is_refused_in_words_and_nothing_is_stored(
    world: World, what: str
) -> None:
    Talker = talker(model := answering("Hello"))
    call, kind, words = WRONG[what]
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    with pytest.raises(kind, match=words):
        await call(a)
    assert await counts(host, "messages", "inbox", "streams") == {
        "messages": 0,
        "inbox": 0,
        "streams": 0,
    }
    assert (await a.save_messages("Hi")).status == "completed"
    assert len(model.requests) == 1


async def test_what_waits_cannot_be_part_of_a_commit_block_and_says_so(world: World) -> None:
    class Blocked(Think):
        model = answering("Hello")

        async def go(self, how: str) -> None:
            async with self.commit():
                await self.storage.put("x", 1)
                if how == "save":
                    await self.save_messages("Hi")
                elif how == "chat":
                    await self.chat("Hi", Ear())
                elif how == "add":
                    await self.add_messages("Hi")
                else:
                    await self.submit_messages("Hi", submission_id="s1")
                    if how == "given up":
                        raise OSError("given up")

    host = await world.host(Blocked)
    a = host.get(Blocked, "a")
    for how in ("save", "chat", "add"):
        with pytest.raises(RuntimeError, match="commit"):
            await a.go(how)
    with pytest.raises(OSError, match="given up"):
        await a.go("given up")
    assert await counts(host, "messages", "inbox", "storage") == {
        "messages": 0,
        "inbox": 0,
        "storage": 0,
    }
    await a.go("submit")
    await host.until_settled()
    assert (await a.inspect_submission("s1")).status == "completed"
    assert len(await a.get_messages()) == 2
