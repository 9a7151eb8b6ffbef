"""Tools of the client that a provider refuses: the turn is answered without them, and the next ones too."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from conversation import rows, talker
from interacting import CLIENT, LOCATE, PICK, calls, check_requests, schema
from picky import Picky
from pydantic_ai.exceptions import ModelHTTPError

from outlast import tool
from outlast.chat.model.errors import ModelFailed
from outlast.chat.model.refused_tools import blamed, may_be_refused
from outlast.core import json
from providers.anthropic_messages import Anthropic
from providers.dialect import Answer, Dialect
from providers.gemini import Gemini
from providers.openai_chat import OpenAIChat
from providers.openai_responses import OpenAIResponses
from providers.server import refuse, running, stream
from support import World, hosting

BAD = schema("bad")


def picky(*answers: Any, **members: Any) -> Picky:
    model = Picky(*answers, by="request", repeat=True)
    model.refuses = frozenset({"bad"})
    for name, value in members.items():
        setattr(model, name, value)
    return model


def offered(model: Any) -> list[list[str]]:
    return [request.tools for request in model.requests]


async def kept(host: Any) -> Any:
    """The schemas that are remembered."""
    found = await rows(host, "facts", "name, value")
    return json.decode(dict(found).get("chat:client_tools", "null"))


# --- who is to blame -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Invalid schema for function 'pick': x", ["pick"]),
        ("functions locate and pick are not valid", ["locate", "pick"]),
        ("tools.2.custom.input_schema: JSON schema is invalid", ["pick"]),
        ("param: tools[1].function.parameters", ["locate"]),
        ("function_declarations[0].name: invalid", ["new"]),
        ("tools.0: a tool of the server; tools.17", ["new"]),
        ("picking a tool failed", ["new"]),
        ("Something is wrong.", ["new"]),
    ],
)
def test_an_error_blames_tools_by_name_or_place_and_otherwise_the_new_ones(
    text: str, expected: list[str]
) -> None:
    of_server_first = ["work", "locate", "pick", "new"]
    assert blamed(text, of_server_first, ["locate", "pick", "new"], ["locate", "pick"]) == expected


def test_without_new_ones_all_are_left_out() -> None:
    assert blamed("No.", ["a", "b"], ["a", "b"], ["a", "b"]) == ["a", "b"]


def failed(status: int | None, kind: Any = "rejected", text: str = "no") -> ModelFailed:
    failure = ModelFailed(text, kind=kind)
    failure.__cause__ = None if status is None else ModelHTTPError(status, "m")
    return failure


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (failed(400), True),
        (failed(422), True),
        (failed(None, "unknown"), True),
        (failed(401), False),
        (failed(404), False),
        (failed(429, "rate_limit"), False),
        (failed(500, "overloaded"), False),
        (failed(400, text="prompt is too long: 210000 tokens"), False),
        (ValueError("of a hook"), False),
    ],
)
def test_only_a_request_that_was_refused_as_it_stood_is_tried_without_tools(
    failure: Exception, expected: bool
) -> None:
    assert may_be_refused(failure) is expected


# --- turns ---------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_refused_tool_is_left_out_of_the_next_try_and_not_remembered(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    Talker = talker(model := picky("Hi."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    result = await a.save_messages("u1", client_tools=[LOCATE, BAD])
    assert (result.status, result.message.text) == ("completed", "Hi.")
    assert await kept(host) == [LOCATE]
    await a.save_messages("u2")
    await a.regenerate()
    await a.continue_last_turn()
    assert model.refused == 1
    await world.stop()
    assert offered(model) == [["locate"]] * 4
    assert "continues without bad" in caplog.text
    check_requests(model)


@pytest.mark.virtual_time
async def test_tools_are_remembered_only_after_an_answer(world: World) -> None:
    """A provider that refuses everything, for whatever reason: nothing of this request stays."""

    async def work(self: Any) -> str:
        return "done"

    Talker = talker(model := picky("Hi."), work=tool()(work))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    model.refuses = frozenset()
    await a.save_messages("u1", client_tools=[LOCATE])
    model.refuses = frozenset({"bad", "work"})
    assert (await a.save_messages("u2", client_tools=[PICK, BAD])).status == "error"
    assert model.refused == 3, "without the one that is named, without all, and no more"
    assert await kept(host) == [LOCATE]
    model.refuses = frozenset({"bad"})
    assert (await a.regenerate()).status == "completed"
    assert (await a.save_messages("u3")).status == "completed"
    await world.stop()
    assert offered(model) == [["work", "locate"]] * 3


@pytest.mark.virtual_time
async def test_two_bad_tools_do_not_end_a_conversation_either(world: World) -> None:
    """A provider names the first one that it does not like."""
    Talker = talker(model := picky("Hi.", refuses=frozenset({"bad", "worse"})))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    given = [LOCATE, BAD, schema("worse")]
    assert (await a.save_messages("u1", client_tools=given)).status == "completed"
    assert (model.refused, await kept(host)) == (2, [])
    await world.stop()
    assert offered(model) == [[]]


@pytest.mark.virtual_time
async def test_a_provider_that_names_no_tool_is_tried_without_the_new_ones(world: World) -> None:
    Talker = talker(model := picky("Hi.", says="Invalid request."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=[LOCATE])
    result = await a.save_messages("u2", client_tools=[LOCATE, PICK, BAD])
    assert result.status == "completed"
    assert await kept(host) == [LOCATE]
    await world.stop()
    assert offered(model) == [["locate"], ["locate"]]


@pytest.mark.virtual_time
async def test_a_tool_that_was_fine_before_is_left_out_when_a_provider_names_it(
    world: World,
) -> None:
    """Another model has other rules; and what is remembered may be from before there were any."""
    Talker = talker(model := picky("Hi.", refuses=frozenset()))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=CLIENT)
    model.refuses = frozenset({"pick"})
    assert (await a.save_messages("u2")).status == "completed"
    assert await kept(host) == [LOCATE]
    await a.save_messages("u3")
    await world.stop()
    assert model.refused == 1
    assert offered(model) == [["locate", "pick"], ["locate"], ["locate"]]


@pytest.mark.virtual_time
async def test_a_refusal_after_an_answer_is_not_blamed_on_tools_and_nothing_is_repeated(
    world: World,
) -> None:
    done: list[int] = []

    async def work(self: Any) -> str:
        done.append(1)
        model.refuses = frozenset({"locate"})
        return "done"

    Talker = talker(model := picky(calls("work"), "Hi."), work=tool()(work))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    assert (await a.save_messages("u1", client_tools=[LOCATE])).status == "error"
    await world.stop()
    assert (model.refused, done) == (1, [1])


@pytest.mark.virtual_time
async def test_a_result_that_brings_a_refused_tool_does_not_end_the_conversation(
    world: World,
) -> None:
    Talker = talker(model := picky(calls("locate"), "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=[LOCATE])
    assert await a.add_tool_output("locate", 1, client_tools=[PICK, BAD])
    assert await kept(host) == [LOCATE], "nothing has been answered with the others yet"
    await host.until_settled()
    assert (await a.get_messages())[-1].text == "Done."
    assert await kept(host) == [PICK]
    assert (await a.save_messages("u2")).status == "completed"
    await world.stop()
    assert offered(model) == [["locate"], ["pick"], ["pick"]]
    check_requests(model)


@pytest.mark.virtual_time
async def test_other_refusals_are_not_tried_again(world: World) -> None:
    Talker = talker(model := picky("Hi.", status=401))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    assert (await a.save_messages("u1", client_tools=[BAD])).status == "error"
    assert (model.refused, await kept(host)) == (1, None)


# --- what providers say --------------------------------------------------------------------------


def openai(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": "tools[0]"}}


PROVIDERS: list[tuple[Dialect, dict[str, Any]]] = [
    (OpenAIChat(), openai("Invalid schema for function 'bad': In context=(), 'x' is not valid.")),
    (OpenAIResponses(), openai("Invalid schema for function 'bad': In context=(), 'x' is wrong.")),
    (
        Anthropic(),
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "tools.0.custom.input_schema: JSON schema is invalid.",
            },
        },
    ),
    (
        Gemini(),
        {
            "error": {
                "code": 400,
                "status": "INVALID_ARGUMENT",
                "message": "GenerateContentRequest.tools[0].function_declarations[0].parameters: no",
            }
        },
    ),
]


@pytest.mark.parametrize(("dialect", "body"), PROVIDERS, ids=lambda each: getattr(each, "name", ""))
async def test_each_provider_s_refusal_leaves_out_the_tool_that_it_is_about(
    sqlite_url: str, dialect: Dialect, body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with running() as server, dialect.model(server.url) as model:
        server.replies = [refuse(400, body), stream(dialect.events(Answer(text=("Hi.",))))]
        Talker = talker(model)
        async with hosting(Talker, url=sqlite_url) as host:
            a = host.get(Talker, "a")
            result = await a.save_messages("u1", client_tools=[BAD, LOCATE])
            assert (result.status, result.message.text) == ("completed", "Hi.")
            assert await kept(host) == [LOCATE]
        first, second = (json.encode(each) for each in server.bodies)
        assert '"bad"' in first
        assert '"bad"' not in second
        assert '"locate"' in second
