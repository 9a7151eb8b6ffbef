"""Stored messages become what a model is sent: the same as it was live."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_streams import SCRIPTS, call, comparable, events
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    VideoUrl,
)

from chat.message.test_reducer import JSON, built
from outlast.chat.context.history import (
    DENIED,
    MAX_RESULT_CHARACTERS,
    WORDLESS,
    HistoryCache,
    ends_with_assistant,
    to_model_messages,
    tool_return,
)
from outlast.chat.context.shorten import older_of, shortened, shortened_value
from outlast.chat.message.encoder import Encoder
from outlast.chat.message.reducer import cleaned
from outlast.chat.model.beginnings import BEGINNING, CONTINUE, with_continuation

ORIGIN = {"model_name": "m", "provider_name": "p", "provider_response_id": "resp_1"}


def user(*parts: Any) -> dict[str, Any]:
    texts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"id": "u", "role": "user", "parts": texts}


def assistant(*parts: Any) -> dict[str, Any]:
    return {"id": "a", "role": "assistant", "parts": list(parts)}


def tool(state: str, call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    part = {"type": "tool-add", "toolCallId": call_id, "state": state, "input": {"a": 1}}
    return {**part, **fields}


def after_the_beginning(*stored: Any) -> list[Any]:
    """What the model is sent for messages that do not begin with the user's."""
    opening, *messages = to_model_messages(stored).messages
    assert opening.parts[0].content == BEGINNING
    return messages


def streamed(script: list[Any], step: int, encoder: Encoder) -> tuple[list[str], ModelResponse]:
    """One step, live: its chunks, and the response that the loop has in its hands."""
    made, parts = events(script)
    chunks = [encoder.start_step(step)]
    chunks += [chunk for event in made for chunk in encoder.event(event)]
    chunks += encoder.end_response()
    response = ModelResponse(parts=parts, **ORIGIN, finish_reason="stop")
    for part in parts:
        if isinstance(part, ToolCallPart) and part.args != '{"a": oops':
            chunks.append(encoder.tool_output(part.tool_call_id, {"sum": [part.tool_call_id]}))
    return chunks + encoder.finish_step(response), response


@pytest.mark.invariant("E20")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_rebuilt_answer_is_the_live_one(name: str) -> None:
    encoder = Encoder()
    chunks, live = streamed(SCRIPTS[name], 1, encoder)
    stored = json.loads(json.dumps(built([encoder.start("m1"), *chunks, encoder.finish("stop")])))
    rebuilt = after_the_beginning(stored)[0]
    assert isinstance(rebuilt, ModelResponse)
    assert comparable(rebuilt) == comparable(live)
    for field in (*ORIGIN, "finish_reason"):
        assert getattr(rebuilt, field) == getattr(live, field)


@pytest.mark.invariant("E20")
@given(st.lists(st.sampled_from(sorted(SCRIPTS)), min_size=1, max_size=4))
@settings(max_examples=60)
def test_several_steps_become_the_alternation_that_they_were(names: list[str]) -> None:
    encoder = Encoder()
    chunks = [encoder.start("m1")]
    live: list[ModelResponse] = []
    for step, name in enumerate(names):
        more, response = streamed(_renamed(SCRIPTS[name], step), step, encoder)
        chunks += more
        live.append(response)
    history = to_model_messages([built(chunks)])
    assert history.dropped_calls == []
    answers = [message for message in history.messages if isinstance(message, ModelResponse)]
    assert [comparable(answer) for answer in answers] == [comparable(answer) for answer in live]
    rest = iter(history.messages[1:])
    for answer in live:
        assert next(rest).kind == "response"
        calls = [part.tool_call_id for part in answer.parts if isinstance(part, ToolCallPart)]
        if calls:
            request = next(rest)
            assert [part.tool_call_id for part in request.parts] == calls  # type: ignore[union-attr]
    ModelMessagesTypeAdapter.dump_json(history.messages)


def _renamed(script: list[Any], step: int) -> list[Any]:
    """The same script with call ids of its own, as providers make them."""
    after = copy.deepcopy(script)
    for _, what in after:
        if getattr(what, "tool_call_id", None):
            what.tool_call_id += f"-{step}"
    return after


def test_a_user_s_words_and_files() -> None:
    picture = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,iVBORw=="}
    linked = {"type": "file", "mediaType": "image/png", "url": "https://example.org/x"}
    [one, two] = to_model_messages([user("Hi"), user("Look", picture, linked)]).messages
    assert isinstance(one, ModelRequest)
    assert [part.content for part in one.parts] == ["Hi"]
    content = two.parts[0].content  # type: ignore[union-attr]
    assert content[0] == "Look"
    assert isinstance(content[1], BinaryContent)
    assert content[1].data == b"\x89PNG"
    assert content[2] == ImageUrl("https://example.org/x", media_type="image/png")


@pytest.mark.parametrize(
    "file",
    [
        {"url": "file:///etc/passwd", "mediaType": "text/plain"},
        {"url": "data:image/png;base64,%%%", "mediaType": "image/png"},
        {"url": "data:nothing", "mediaType": "image/png"},
        {"url": 7},
        {},
    ],
)
def test_files_that_cannot_be_used_are_skipped(file: dict[str, Any]) -> None:
    part = {"type": "file", **file}
    [request] = to_model_messages([user("Look", part)]).messages
    assert request.parts == [UserPromptPart("Look", timestamp=ANY)]


@pytest.mark.parametrize(
    ("url", "given", "kind", "media_type"),
    [
        ("https://e.org/x.PNG?w=1#a", None, ImageUrl, "image/png"),
        ("https://e.org/x.mp3", "", AudioUrl, "audio/mpeg"),
        ("https://e.org/x.mp4", "video", VideoUrl, "video/mp4"),
        ("https://e.org/x.pdf", 7, DocumentUrl, "application/pdf"),
        ("https://e.org/x", "image/jpg", ImageUrl, "image/jpeg"),
    ],
)
def test_a_link_without_a_type_is_taken_for_what_its_ending_says(
    url: str, given: Any, kind: type[Any], media_type: str
) -> None:
    [request] = to_model_messages([user({"type": "file", "url": url, "mediaType": given})]).messages
    [file] = request.parts[0].content  # type: ignore[union-attr, misc]
    assert (type(file), file.url, file.media_type) == (kind, url, media_type)


@pytest.mark.parametrize("url", ["https://e.org/x", "https://e.org/x.novel", "http://["])
def test_a_link_to_nobody_knows_what_is_named(url: str) -> None:
    [request] = to_model_messages([user({"type": "file", "url": url})]).messages
    assert [part.content for part in request.parts] == [f"(a file: {url})"]


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [{"type": "text", "text": ""}],
        [{"type": "text", "text": " \n\t"}],
        [{"type": "file", "url": "blob:7"}],
        [{"type": "data-place", "data": {"x": 1}}],
        [{"type": "novel"}, 7],
    ],
)
def test_a_message_without_words_is_still_the_last_thing_said(parts: list[Any]) -> None:
    greeting = assistant({"type": "text", "text": "Welcome."})
    for before in ([], [user("Hi"), greeting], [greeting]):
        history = to_model_messages([*before, user(*parts)], instructions="Be brief.").messages
        last = history[-1]
        assert isinstance(last, ModelRequest)
        assert [part.content for part in last.parts] == [WORDLESS]
        assert last.instructions == "Be brief."
        assert with_continuation(history) == history


@pytest.mark.parametrize(
    "stored",
    [
        [],
        [{"id": "s", "role": "system", "parts": [{"type": "text", "text": "Be kind."}]}],
        [assistant({"type": "text", "text": "Welcome."})],
        [assistant(tool("output-available", output=1))],
        [assistant(tool("input-available"))],
        ["garbage"],
    ],
)
def test_instructions_are_sent_however_a_conversation_begins(stored: list[Any]) -> None:
    history = to_model_messages(stored, instructions="Be brief.").messages
    requests = [message for message in history if isinstance(message, ModelRequest)]
    assert requests[-1].instructions == "Be brief."
    last = with_continuation(history)[-1]
    assert isinstance(last, ModelRequest)
    assert last.instructions == "Be brief."


def test_instructions_go_with_the_last_request_and_system_messages_stay_in_place() -> None:
    system = {"id": "s", "role": "system", "parts": [{"type": "text", "text": "Be kind."}]}
    done = assistant(tool("output-available", output=1))
    messages = to_model_messages([system, user("Hi"), done], instructions="Be brief.").messages
    requests = [message for message in messages if isinstance(message, ModelRequest)]
    assert [request.instructions for request in requests] == [None, None, "Be brief."]
    assert requests[0].parts[0].part_kind == "system-prompt"


def test_a_note_of_the_system_is_nothing_to_answer() -> None:
    note = {"id": "s", "role": "system", "parts": [{"type": "text", "text": "It is late."}]}
    said = assistant({"type": "text", "text": "Welcome."})
    for stored in ([note], [user("Hi"), said, note]):
        last = with_continuation(to_model_messages(stored).messages)[-1]
        assert "user-prompt" in [part.part_kind for part in last.parts]
    answered = to_model_messages([user("Hi"), note]).messages
    assert with_continuation(answered) == answered


def test_calls_that_share_an_id_are_told_apart() -> None:
    def called(*outputs: int) -> dict[str, Any]:
        return assistant(*(tool("output-available", output=each) for each in outputs))

    stored = [user("Hi"), called(1), user("Again"), called(2, 3), assistant(tool("output-error"))]
    messages = to_model_messages(stored).messages
    calls = [
        part.tool_call_id
        for message in messages
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    returns = [
        (part.tool_call_id, part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    assert calls == ["c1", "c1_2", "c1_3", "c1_4"]
    assert returns == [("c1", 1), ("c1_2", 2), ("c1_3", 3), ("c1_4", "The call failed.")]


@pytest.mark.parametrize(
    ("part", "content", "outcome"),
    [
        (tool("output-available", output={"sum": 2}), {"sum": 2}, "success"),
        (tool("output-error", errorText="boom"), "boom", "failed"),
        (
            tool(
                "output-error",
                errorText="again",
                resultProviderMetadata={"outlast": {"outcome": "retried"}},
            ),
            "again",
            "retried",
        ),
        (
            tool(
                "output-error",
                errorText="It may have run.",
                resultProviderMetadata={"outlast": {"outcome": "unknown"}},
            ),
            "It may have run.",
            "failed",
        ),
        (tool("output-denied", approval={"id": "x", "approved": False}), DENIED, "denied"),
        (tool("output-denied", approval={"reason": "not today"}), "not today", "denied"),
    ],
)
def test_outcomes_of_calls(part: dict[str, Any], content: object, outcome: str) -> None:
    [answer, request] = after_the_beginning(assistant(part))
    assert answer.parts == [call(args={"a": 1})]
    [returned] = request.parts
    assert isinstance(returned, ToolReturnPart)
    assert (returned.content, returned.outcome) == (content, outcome)
    assert replace(tool_return(part), timestamp=returned.timestamp) == returned


def test_a_result_is_cut_for_the_model_and_keeps_its_shape() -> None:
    rows = [{"id": number, "text": "x" * 400} for number in range(12_000)]
    part = tool("output-available", output={"count": 12_000, "rows": rows})  # 5 MB
    content = tool_return(part).content
    assert content["count"] == 12_000
    assert content["rows"][0] == rows[0]
    assert "more]" in content["rows"][-1]
    assert MAX_RESULT_CHARACTERS / 20 < len(json.dumps(content)) <= MAX_RESULT_CHARACTERS * 1.1
    assert len(part["output"]["rows"]) == 12_000
    for text in (
        tool_return(tool("output-available", output="y" * 5_000_000)).content,
        tool_return(tool("output-error", errorText="y" * 5_000_000)).content,
    ):
        assert len(text) == MAX_RESULT_CHARACTERS
        assert "[truncated 4900000 chars]" in text


def test_what_is_short_enough_is_the_tool_s_own_and_pictures_stay_whole() -> None:
    output = {"kind": "Secret", "data": "x" * 50_000}
    assert tool_return(tool("output-available", output=output)).content is output
    looks_like_media = {"kind": "Secret", "data": "x" * 200_000}
    cut = tool_return(tool("output-available", output=looks_like_media)).content
    assert len(cut["data"]) < 200_000
    picture = BinaryContent(bytes(300_000), media_type="image/png")
    stored = json.loads(Encoder().tool_output("c1", ["see", picture]))["output"]
    content = tool_return(tool("output-available", output=stored)).content
    assert content[1].data == picture.data


def test_a_return_is_named_after_its_part() -> None:
    part = {"type": "dynamic-tool", "toolName": "add", "toolCallId": "c7"}
    returned = tool_return({**part, "state": "output-available", "output": 1})
    assert (returned.tool_name, returned.tool_call_id) == ("add", "c7")
    assert tool_return({}).tool_name == ""


@pytest.mark.parametrize(
    "state",
    ["input-streaming", "input-available", "approval-requested", "approval-responded", None, []],
)
def test_calls_without_an_outcome_are_left_out_and_named(state: Any) -> None:
    text = {"type": "text", "text": "Let me see."}
    history = to_model_messages([assistant(text, tool(state))])
    assert history.dropped_calls == ["c1"]
    [_, answer] = history.messages
    assert answer.parts == [TextPart("Let me see.")]
    preliminary = tool("output-available", output=1, preliminary=True)
    assert to_model_messages([assistant(preliminary)]).dropped_calls == ["c1"]


def test_a_message_without_marks_is_split_where_a_text_follows_a_result() -> None:
    text = {"type": "text", "text": "Two."}
    messages = after_the_beginning(assistant(tool("output-available", output=2), text))
    assert [message.kind for message in messages] == ["response", "request", "response"]


def test_unfinished_reasoning_is_not_sent_unless_it_is_signed() -> None:
    reasoning = {"type": "reasoning", "text": "Hm", "state": "streaming"}
    text = {"type": "text", "text": "So", "state": "streaming"}
    partial = cleaned(assistant(reasoning, text))
    assert partial is not None
    [answer] = after_the_beginning(partial)
    assert answer.parts == [TextPart("So")]
    signed = {"outlast": {"signature": "s", "provider_name": "anthropic"}}
    partial = cleaned(assistant({**reasoning, "providerMetadata": signed}))
    assert partial is not None
    [answer] = after_the_beginning(partial)
    assert answer.parts == [ThinkingPart("Hm", signature="s", provider_name="anthropic")]


def test_reasoning_of_the_ai_sdk_keeps_its_signature() -> None:
    def reasoning(text: str, **fields: str) -> dict[str, Any]:
        return {"type": "reasoning", "text": text, "providerMetadata": {"anthropic": fields}}

    parts = [reasoning("Hm", signature="s"), reasoning("", redactedData="x")]
    [answer] = after_the_beginning(assistant(*parts))
    assert answer.parts == [
        ThinkingPart("Hm", signature="s", provider_name="anthropic"),
        ThinkingPart("", id="redacted_thinking", signature="x", provider_name="anthropic"),
    ]


def test_pictures_that_a_tool_returned_are_pictures_again() -> None:
    picture = BinaryContent(b"\x89PNG", media_type="image/png")
    chunk = json.loads(Encoder().tool_output("c1", ["see", picture]))
    stored = assistant(tool("output-available", output=chunk["output"]))
    [_, request] = after_the_beginning(stored)
    content = request.parts[0].content  # type: ignore[union-attr]
    assert content[0] == "see"
    assert content[1].data == picture.data


def test_a_request_never_ends_with_the_model_s_own_words() -> None:
    stored = [user("Hi"), assistant({"type": "text", "text": "Hel"})]
    assert ends_with_assistant(stored)
    assert not ends_with_assistant(stored[:1])
    assert not ends_with_assistant([])
    history = to_model_messages(stored).messages
    continued = with_continuation(history, instructions="Be brief.")
    last = continued[-1]
    assert isinstance(last, ModelRequest)
    assert isinstance(last.parts[0], UserPromptPart)
    assert (last.parts[0].content, last.instructions) == (CONTINUE, "Be brief.")
    assert with_continuation(continued) == continued
    assert len(history) == 2


# --- garbage -------------------------------------------------------------------------------------

KINDS = ["text", "reasoning", "file", "step-start", "tool-add", "dynamic-tool", "data-x", "custom"]
OURS = st.fixed_dictionaries(
    {},
    optional={
        name: JSON | st.integers(-2, 5)
        for name in (
            "id",
            "signature",
            "provider_name",
            "provider_details",
            "citations",
            "continues",
            "slot",
            "tool_kind",
            "finish_reason",
            "unfinished",
        )
    },
)
METADATA = JSON | st.fixed_dictionaries({"outlast": OURS | JSON, "anthropic": JSON})
PARTS = JSON | st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | JSON},
    optional={
        "text": JSON,
        "url": JSON | st.sampled_from(["data:,x", "data:image/png;base64,aGk=", "https://x"]),
        "mediaType": JSON | st.sampled_from(["image/png", "text/plain"]),
        "toolCallId": JSON | st.just("c1"),
        "toolName": JSON,
        "state": st.sampled_from(["output-available", "output-error", "output-denied"]) | JSON,
        "input": JSON,
        "rawInput": JSON,
        "output": JSON,
        "errorText": JSON,
        "approval": JSON,
        "providerExecuted": st.booleans() | JSON,
        "providerMetadata": METADATA,
        "callProviderMetadata": METADATA,
        "resultProviderMetadata": METADATA,
    },
)
MESSAGES = JSON | st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]) | JSON},
    optional={"parts": st.lists(PARTS, max_size=5) | JSON, "id": JSON},
)


@given(st.lists(MESSAGES, max_size=6))
@settings(max_examples=150)
def test_no_stored_garbage_raises(messages: list[Any]) -> None:
    before = copy.deepcopy(messages)
    history = to_model_messages(shortened(messages))
    ends_with_assistant(messages)
    with_continuation(history.messages)
    assert messages == before
    for message in history.messages:
        assert message.parts


# --- once is enough ------------------------------------------------------------------------------


def without_times(messages: list[Any]) -> Any:
    return json.loads(
        re.sub(r'"timestamp":"[^"]*"', '"timestamp":null', dumped(messages)),
    )


def dumped(messages: list[Any]) -> str:
    return ModelMessagesTypeAdapter.dump_json(messages).decode()


@given(st.lists(MESSAGES, min_size=1, max_size=9), st.integers(0, 9))
@settings(max_examples=60)
def test_a_cache_changes_nothing(messages: list[Any], growth: int) -> None:
    cache = HistoryCache()
    for end in range(max(0, len(messages) - growth), len(messages) + 1):
        path = messages[:end]
        fresh = to_model_messages(path, instructions=f"Be {end}.", shorten=True)
        cached = to_model_messages(path, instructions=f"Be {end}.", shorten=True, cache=cache)
        by_hand = to_model_messages(shortened(path), instructions=f"Be {end}.")
        assert without_times(cached.messages) == without_times(fresh.messages)
        assert without_times(by_hand.messages) == without_times(fresh.messages)
        assert cached.dropped_calls == fresh.dropped_calls


def test_a_cache_converts_each_message_once_and_keeps_those_last_used() -> None:
    cache = HistoryCache()
    stored = [user("Hi"), assistant({"type": "text", "text": "Hello."}), user("And?")]
    first = to_model_messages(stored, cache=cache).messages
    again = to_model_messages(stored, cache=cache, instructions="Be brief.").messages
    assert [one is other for one, other in zip(first, again, strict=True)] == [True, True, False]
    assert again[-1].parts is first[-1].parts
    assert first[-1].instructions is None  # type: ignore[union-attr]
    changed = [stored[0], {**stored[1]}, stored[2]]
    assert to_model_messages(changed, cache=cache).messages[1] is not first[1]
    to_model_messages(stored[:1], cache=cache)
    assert len(cache._kept) == 1


def test_a_cached_message_is_shortened_when_it_grows_old() -> None:
    cache = HistoryCache()
    long = user("x" * 20_000)
    stored = [long, *(user(str(number)) for number in range(11))]
    for count, length in ((11, 20_000), (12, 10_000)):
        first = to_model_messages(stored[:count], cache=cache, shorten=True).messages[0]
        assert len(first.parts[0].content) == length  # type: ignore[union-attr, arg-type]


# --- shortening ----------------------------------------------------------------------------------


def test_older_messages_are_shortened_for_the_model_only() -> None:
    long = assistant(
        {"type": "text", "text": "x" * 20_000},
        tool("output-available", output={"rows": ["y" * 300] * 10, "count": 10}),
    )
    stored = [long, *[user(str(n)) for n in range(10)]]
    assert shortened(stored) == stored
    stored = [long, *[user(str(n)) for n in range(11)]]
    before = copy.deepcopy(stored)
    text, called = shortened(stored)[0]["parts"]
    assert stored == before
    assert len(text["text"]) == 10_000
    assert text["text"].endswith("... [truncated 10000 chars]")
    assert isinstance(called["output"]["rows"], list)
    assert called["output"]["count"] == 10
    assert len(json.dumps(called["output"])) < 600
    assert called["input"] == {"a": 1}


def test_the_cut_moves_in_steps_so_that_caches_hit_in_between() -> None:
    assert [older_of(count) for count in (0, 4, 11, 12, 19, 20, 27, 28)] == [
        0,
        0,
        0,
        8,
        8,
        16,
        16,
        24,
    ]


@given(JSON | st.text(min_size=100, max_size=300), st.integers(60, 200))
@settings(max_examples=100)
def test_what_is_shortened_is_never_longer_and_keeps_its_shape(value: Any, budget: int) -> None:
    def size(of: Any) -> int:
        return len(of) if isinstance(of, str) else len(json.dumps(of, ensure_ascii=False))

    for grown in (value, [value] * 20, {f"k{n}": value for n in range(20)}):
        before = copy.deepcopy(grown)
        after = shortened_value(grown, budget)
        assert grown == before
        assert type(after) is type(grown)
        assert size(after) <= size(grown)
        assert shortened_value("short", budget) == "short"
