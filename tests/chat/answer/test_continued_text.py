"""An answer that was interrupted in the middle of a text: how the rest is asked for, and the seam."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from chat_rows import stored
from conversation import rows
from interruptions import (
    ADDRESS,
    Told,
    break_off,
    check_stream,
    kinds,
    talker,
    tell_nobody,
    transcript,
    wait_for,
)
from pydantic_ai.exceptions import ModelHTTPError

from outlast import Continuation, ToolCall, TurnConfig, tool
from outlast.chat.model.beginnings import asks_to_continue
from outlast.host.address import Address
from outlast.inspect import views
from outlast.inspect.reader import reading
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

FIRST = "The old man had been fishing alone in the Gulf Stream, and he had gone"
REST = " eighty-four days now without taking a fish."
WHOLE = FIRST + REST
PIECES = [FIRST[:20], FIRST[20:50], FIRST[50:]]

PREFILL_REFUSED = ModelHTTPError(
    400, "m", {"error": {"message": "This model does not support assistant message prefill."}}
)


def is_asked(messages: Any) -> bool:
    """Whether the model is asked to continue, in words."""
    return any(asks_to_continue(getattr(part, "content", None)) for part in messages[-1].parts)


def is_handed(messages: Any) -> bool:
    """Whether the conversation ends with the model's own words."""
    return bool(messages[-1].kind == "response")


def begins_with(*continuing: Any, pieces: Sequence[str] = PIECES) -> ScriptedModel:
    """A model that is cut off after these pieces, and then says these things, one a request."""
    left = list(continuing)

    def step(messages: Any) -> Any:
        if is_asked(messages) or is_handed(messages):
            return left.pop(0)
        return Step.text(chunks=[*pieces, "never"], delay=0.5)

    return ScriptedModel.answering(step)


async def continued(url: str, model: Any, **members: Any) -> tuple[str, dict[str, Any], list[str]]:
    """The text of the whole answer, how it was joined, and the kinds of chunks after the death."""
    Talker = talker(model, **members)
    await break_off(url, Talker, "u1", after=1.8)
    async with hosting(Talker, url=url, life="2") as host:
        before = len(kinds(await stored(host, ADDRESS), "s1"))
        await wait_for(host, Talker)
        found = await stored(host, ADDRESS)
        said = (await transcript(host))[-1].removeprefix("assistant: ")
        [(body,)] = await rows(host, "decisions", "body")
        chunks = kinds(found, "s1")
        if "reset-step" not in chunks:
            check_stream(found, "s1", said)
    return said, json.loads(body).get("seam"), chunks[before:]


# --- the ways ------------------------------------------------------------------------------------


async def test_a_model_that_can_is_handed_its_own_words(store_url: str) -> None:
    model = begins_with(REST)
    text, seam, chunks = await continued(store_url, model, continuation="prefill")
    assert text == WHOLE
    assert (seam["way"], seam["kind"]) == ("prefill", "continue")
    request = model.requests[-1].messages
    assert is_handed(request)
    assert request[-1].text == FIRST
    assert "text-start" not in chunks, "the text goes on"


async def test_the_inspector_shows_the_way(sqlite_url: str) -> None:
    Talker = talker(begins_with(FIRST[-30:] + REST))
    await break_off(sqlite_url, Talker, "u1", after=1.8)
    async with hosting(Talker, url=sqlite_url, life="2") as host:
        await wait_for(host, Talker)
    async with reading(sqlite_url) as reader:
        found = await views.turn(reader, Address.of("Talker", "a"), "s1", is_hosted=False)
    [moment] = [each for each in found.moments if each.kind == "continued"]
    assert "asked to continue; 30 repeated characters were left out" in str(moment.why)


async def test_white_space_at_the_seam_is_not_doubled(sqlite_url: str) -> None:
    """It is not sent, so the model writes it once more."""
    model = begins_with(REST, pieces=[*PIECES[:-1], PIECES[-1] + " "])
    text, _, _ = await continued(sqlite_url, model, continuation="prefill")
    assert text == WHOLE
    assert model.requests[-1].messages[-1].text == FIRST


async def test_others_are_asked_to_begin_with_the_end_of_their_words(store_url: str) -> None:
    model = begins_with(FIRST[-30:] + REST)
    text, seam, _ = await continued(store_url, model)
    assert text == WHOLE
    assert (seam["way"], seam["kind"], seam["reason"]) == ("instruct", "spliced", "tail")
    assert seam["removed"] == 30
    assert seam["why_not_better"] == "the provider cannot continue a message"
    [prompt] = [part.content for part in model.requests[-1].messages[-1].parts]
    assert f"{FIRST[-30:]}</tail>" in prompt


async def test_who_refuses_to_be_handed_its_words_is_asked_in_the_same_attempt(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = begins_with(Step.fails(PREFILL_REFUSED), FIRST[-20:] + REST)
    Talker = talker(model, continuation="prefill")
    await break_off(store_url, Talker, "u1", after=1.8)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", f"assistant: {WHOLE}"]
        assert len(told.decided) == 1
        [(body,)] = await rows(host, "decisions", "body")
    seam = json.loads(body)["seam"]
    assert seam["way"] == "instruct"
    assert "refused" in seam["why_not_better"]
    assert [is_handed(request.messages) for request in model.requests] == [False, True, False]
    assert "asking the model to continue" in caplog.text


async def test_who_has_refused_is_not_asked_again_by_this_host(sqlite_world: World) -> None:
    model = begins_with(Step.fails(PREFILL_REFUSED), *[FIRST[-20:] + REST] * 2)
    Talker = talker(model, continuation="prefill")
    host = await sqlite_world.host(Talker, shutdown_timeout=0)
    tell_nobody(host)
    for name in ("a", "b"):
        await host.get(Talker, name).submit_messages("u1", submission_id=name)
    await asyncio.sleep(1.8)
    host = await sqlite_world.next_life()
    await host.until_settled()
    for name in ("a", "b"):
        assert (await host.get(Talker, name).get_messages())[-1].text == WHOLE
    await sqlite_world.stop()
    assert sum(is_handed(request.messages) for request in model.requests) <= 2
    assert len(model.requests) <= 2 + 4


async def test_another_error_is_no_refusal(sqlite_url: str) -> None:
    """The turn is taken up again, in the same way."""
    model = begins_with(Step.fails("connection"), Step.fails("connection"), REST)
    text, seam, _ = await continued(sqlite_url, model, continuation="prefill")
    assert (text, seam["way"]) == (WHOLE, "prefill")


async def test_a_turn_may_be_continued_otherwise_than_its_agent_says(sqlite_url: str) -> None:
    model = begins_with(FIRST[-20:] + REST)
    _, seam, _ = await continued(
        sqlite_url,
        model,
        continuation="prefill",
        before_turn=lambda *_: TurnConfig(continuation="instruct"),
    )
    assert seam["way"] == "instruct"


async def test_new_message_is_a_way_of_continuing(store_url: str) -> None:
    Talker = talker(begins_with(REST), continuation="new_message")
    await break_off(store_url, Talker, "u1", after=1.8)
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        said = await transcript(host)
    assert said[:2] == ["user: u1", f"assistant: {FIRST}"]
    assert len(said) == 3


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            "prefil",
            ValueError,
            "continuation must be one of 'retrieve', 'prefill', 'instruct', 'new_message'",
        ),
        (5, TypeError, "or a Continuation, got 5"),
    ],
)
async def test_a_way_that_does_not_exist_is_told(
    sqlite_world: World, given: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        TurnConfig(continuation=given)
    Talker = talker(ScriptedModel("Hi."), continuation=given)
    host = await sqlite_world.host(Talker)
    with pytest.raises(Exception, match=text):
        await host.get(Talker, "a").save_messages("u1")


def test_settings_that_make_no_sense_are_told() -> None:
    with pytest.raises(ValueError, match="way must be one of 'retrieve', .* got 'prefil'"):
        Continuation(way="prefil")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_characters must be an int of at least 1, got 0"):
        Continuation(max_characters=0)
    with pytest.raises(ValueError, match="max_delay must"):
        Continuation(max_delay=-1)
    with pytest.raises(ValueError, match="must be set on the agent"):
        TurnConfig(continuation="new_message")


# --- what models do instead ----------------------------------------------------------------------

MISBEHAVIOURS: dict[str, tuple[Any, str, str]] = {
    "continues": (REST, WHOLE, "continue"),
    "repeats the tail": (FIRST[-40:] + REST, WHOLE, "spliced"),
    "repeats everything": ("\n" + WHOLE, WHOLE, "spliced"),
    "greets": (f"Sure, here is the rest:\n\n{FIRST[-30:]}{REST}", WHOLE, "spliced"),
    "greets and starts over": (f"Certainly! Here is the full answer:\n\n{WHOLE}", WHOLE, "spliced"),
    "stops at once": (FIRST[-30:], FIRST, ""),
    "says nothing": ("", FIRST, ""),
}


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("what", MISBEHAVIOURS)
async def test_what_the_reader_has_seen_is_not_shown_again(
    sqlite_url: str, what: str, pieces: int
) -> None:
    said, whole, kind = MISBEHAVIOURS[what]
    step = Step.text(chunks=[said[n : n + pieces] for n in range(0, len(said), pieces)] or [""])
    text, seam, _ = await continued(sqlite_url, begins_with(step))
    assert text == whole
    assert (seam["kind"] if seam else "") == kind


OTHER = "The old man and the sea is a short novel by Ernest Hemingway, written in Cuba."


async def test_an_answer_that_begins_anew_replaces_the_partial_one_visibly(store_url: str) -> None:
    text, seam, chunks = await continued(store_url, begins_with(OTHER))
    assert text == OTHER
    assert (seam["kind"], seam["reason"]) == ("replace", "restart")
    assert chunks[:2] == ["reset-step", "text-start"]


async def test_or_begins_a_new_paragraph(sqlite_url: str) -> None:
    wanted = Continuation(may_replace=False)
    text, seam, chunks = await continued(sqlite_url, begins_with(OTHER), continuation=wanted)
    assert text.startswith(FIRST.rstrip())
    assert "\n\n" in text
    assert text.endswith("written in Cuba.")
    assert seam["kind"] == "new_paragraph"
    assert "reset-step" not in chunks


async def test_what_may_be_new_is_held_back_for_400_ms_at_most(sqlite_url: str) -> None:
    """Also if the model falls silent in the middle of it."""
    step = Step.text(chunks=[" eighty", "-four days."], delay=5)
    Talker = talker(begins_with(step))
    await break_off(sqlite_url, Talker, "u1", after=1.8)
    async with hosting(Talker, url=sqlite_url, life="2") as host:
        await asyncio.sleep(5.2)
        assert (await transcript(host)) == ["user: u1"]
        assert (await stored(host, ADDRESS)).streams["s1"][-1].count("eighty") == 0
        await asyncio.sleep(0.3)
        assert "eighty" in (await stored(host, ADDRESS)).streams["s1"][-1]
        await wait_for(host, Talker)
        assert (await transcript(host))[-1] == f"assistant: {FIRST} eighty-four days."


async def test_a_turn_that_is_stopped_while_its_rest_is_held_back(sqlite_url: str) -> None:
    step = Step.text(chunks=[FIRST[-30:-10], "never"], delay=60)
    Talker = talker(begins_with(step))
    await break_off(sqlite_url, Talker, "u1", after=1.8)
    async with hosting(Talker, url=sqlite_url, life="2") as host:
        await asyncio.sleep(61)
        assert await host.get(Talker, "a").cancel_chat("s1", "enough")
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", f"assistant: {FIRST}"]


async def test_killed_again_while_the_rest_is_held_back(store_url: str) -> None:
    model = begins_with(Step.text(chunks=[FIRST[-30:-10], "never"], delay=1), FIRST[-30:] + REST)
    Talker = talker(model)
    await break_off(store_url, Talker, "u1", after=1.8)
    async with hosting(Talker, url=store_url, life="2", shutdown_timeout=0) as host:
        tell_nobody(host)
        await asyncio.sleep(1.2)
    async with hosting(Talker, url=store_url, life="3") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", f"assistant: {WHOLE}"]


# --- what else an answer has ---------------------------------------------------------------------


async def test_thoughts_before_the_rest_are_not_shown_in_the_middle_of_the_text(
    sqlite_url: str,
) -> None:
    step = Step.reasoning("Where was I?") + Step.text(FIRST[-20:] + REST)
    text, _, chunks = await continued(sqlite_url, begins_with(step))
    assert text == WHOLE
    assert "reasoning-start" not in chunks
    assert "text-start" not in chunks


@pytest.mark.parametrize("way", ["prefill", "instruct"])
async def test_the_rest_may_call_tools(store_url: str, way: Any) -> None:
    """The next request has the text once, in one piece, and the call."""
    done: list[str] = []

    async def note(self: Any, call: ToolCall) -> str:
        done.append(call.id)
        return "noted"

    repeated = "" if way == "prefill" else FIRST[-20:]
    step = Step.text(repeated + REST) + Step.call("note", {}, id="n1")
    Talker = talker(after_call(step), continuation=way, note=tool()(note))
    await break_off(store_url, Talker, "u1", after=1.8)
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert (await transcript(host))[-1] == f"assistant: {WHOLE}Done."
    assert done == ["n1"]
    last = Talker.model.requests[-1].messages
    texts = [part.content for part in last[-2].parts if part.part_kind == "text"]
    assert texts == [WHOLE]


def after_call(step: Step) -> ScriptedModel:
    """As `begins_with`, and an end once the tool has returned."""

    def answer(messages: Any) -> Any:
        if any(part.part_kind == "tool-return" for part in messages[-1].parts):
            return "Done."
        if is_asked(messages) or is_handed(messages):
            return step
        return Step.text(chunks=[*PIECES, "never"], delay=0.5)

    return ScriptedModel.answering(answer)


async def test_thoughts_before_a_call_are_kept(sqlite_url: str) -> None:
    async def note(self: Any) -> str:
        return "noted"

    step = Step.reasoning("I need the tool.") + Step.call("note", {}, id="n1")
    Talker = talker(after_call(step), note=tool()(note))
    await break_off(sqlite_url, Talker, "u1", after=1.8)
    async with hosting(Talker, url=sqlite_url, life="2") as host:
        await wait_for(host, Talker)
        message = (await host.get(Talker, "a").get_messages())[-1]
    kinds_shown = [part["type"] for part in message.parts if part["type"] != "step-start"]
    assert kinds_shown == ["text", "reasoning", "tool-note", "text"]
    assert message.parts[1]["text"] == FIRST


async def test_a_text_that_says_next_to_nothing_is_written_again(sqlite_url: str) -> None:
    def answer(messages: Any) -> Any:
        return "# The sea" if is_asked(messages) else Step.text(chunks=["# ", "never"], delay=0.5)

    Talker = talker(ScriptedModel.answering(answer))
    await break_off(sqlite_url, Talker, "u1", after=0.8)
    async with hosting(Talker, url=sqlite_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", "assistant: # The sea"]
