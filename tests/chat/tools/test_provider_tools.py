"""Turns with tools over the providers' real classes: what the servers are sent is what they would take."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tool_calls import call_parts, ledger, outcomes

from loops import skip
from outlast import Host, Think, TurnConfig, tool
from providers.anthropic_messages import Anthropic
from providers.dialect import Answer, Call, Dialect
from providers.gemini import Gemini
from providers.openai_chat import OpenAIChat
from providers.openai_responses import OpenAIResponses
from providers.server import Reply, Server, running, stream
from support import hosting

DIALECTS: list[Dialect] = [OpenAIChat(), OpenAIResponses(), Anthropic(), Gemini()]
KINDS = ["rate_limit", "quota", "overloaded", "context_overflow", "rejected"]
BONN = Call("c1", "weather", {"city": "Bonn"})
ROME = Call("c2", "weather", {"city": "Rome"})
PAY = Call("c3", "pay", {"amount": 5})
HELLO = Answer(text=("Hello ", "there."))

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)

ran: list[str] = []  # the world outside


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    ran.clear()


class Assistant(Think):
    """Looks at the weather, and pays if it may."""

    chat_recovery = False

    max_retries = 0
    system_prompt = "Be brief."

    @tool(effect="read")
    async def weather(self, city: str) -> str:
        """The weather in a city."""
        ran.append(city)
        while city == "Rome" and "Bonn" not in ran:  # whichever is called first, Rome comes second
            await asyncio.sleep(0)
        return f"sunny in {city}"

    @tool(needs_approval=True)
    async def pay(self, amount: int) -> dict[str, int]:
        """Pay an amount."""
        ran.append(f"paid {amount}")
        return {"paid": amount}


# --- what a provider was sent --------------------------------------------------------------------


def calls_of(dialect: Dialect, body: Any) -> list[tuple[str, str, Any]]:
    """The calls in a request, in order: id, name and arguments."""
    if isinstance(dialect, OpenAIChat):
        calls = [call for each in body["messages"] for call in each.get("tool_calls") or ()]
        functions = [(call["id"], call["function"]) for call in calls]
        return [(id, each["name"], json.loads(each["arguments"])) for id, each in functions]
    if isinstance(dialect, OpenAIResponses):
        items = [item for item in body["input"] if item.get("type") == "function_call"]
        return [(item["call_id"], item["name"], json.loads(item["arguments"])) for item in items]
    if isinstance(dialect, Anthropic):
        return [(each["id"], each["name"], each["input"]) for each in _blocks(body, "tool_use")]
    calls = [part["functionCall"] for part in _parts(body) if "functionCall" in part]
    return [(call["id"], call["name"], call["args"]) for call in calls]


def results_of(dialect: Dialect, body: Any) -> list[tuple[str, str]]:
    """The results in a request, in order: the id of the call, and the text."""
    if isinstance(dialect, OpenAIChat):
        tools = [each for each in body["messages"] if each["role"] == "tool"]
        return [(each["tool_call_id"], each["content"]) for each in tools]
    if isinstance(dialect, OpenAIResponses):
        items = [item for item in body["input"] if item.get("type") == "function_call_output"]
        return [(item["call_id"], item["output"]) for item in items]
    if isinstance(dialect, Anthropic):
        blocks = _blocks(body, "tool_result")
        return [(each["tool_use_id"], each["content"][0]["text"]) for each in blocks]
    results = [part["functionResponse"] for part in _parts(body) if "functionResponse" in part]
    return [(each["id"], _said(each["response"])) for each in results]


def _blocks(body: Any, kind: str) -> list[Any]:
    content = [block for each in body["messages"] for block in each["content"]]
    return [block for block in content if block["type"] == kind]


def _parts(body: Any) -> list[Any]:
    return [part for content in body["contents"] for part in content["parts"]]


def _said(response: dict[str, Any]) -> str:
    """Gemini wants an object: a text stands under a name."""
    texts = [response[name] for name in ("return_value", "call_error") if name in response]
    return str(texts[0]) if texts else json.dumps(response, separators=(",", ":"))


def check_body(dialect: Dialect, body: Any) -> None:
    """What `dialect.check` says, and that each call is answered once, by its id and in order."""
    dialect.check(body)
    called = [id for id, _, _ in calls_of(dialect, body)]
    assert [id for id, _ in results_of(dialect, body)] == called
    assert len(set(called)) == len(called), "each call has an id of its own"
    for _, _, arguments in calls_of(dialect, body):
        assert isinstance(arguments, dict)
    if isinstance(dialect, Anthropic):
        roles = [message["role"] for message in body["messages"]]
        assert all(a != b for a, b in zip(roles, roles[1:], strict=False)), "they take turns"
        for message in body["messages"]:
            kinds = [block["type"] for block in message["content"]]
            assert "thinking" not in kinds[1:], "thoughts come first"
            assert "tool_result" not in kinds or kinds[0] == "tool_result", "and so do results"
    if isinstance(dialect, OpenAIResponses):
        kinds = [item.get("type", "message") for item in body["input"]]
        for kind, after in zip(kinds, kinds[1:], strict=False):
            assert kind != "reasoning" or after in ("message", "function_call")
        for id in called:
            places = [at for at, item in enumerate(body["input"]) if item.get("call_id") == id]
            assert [kinds[at] for at in places] == ["function_call", "function_call_output"]
    if isinstance(dialect, Gemini):
        names = [
            part["functionResponse"]["name"] for part in _parts(body) if "functionResponse" in part
        ]
        assert names == [name for _, name, _ in calls_of(dialect, body)]


# --- talking -------------------------------------------------------------------------------------


@dataclass
class Talk:
    """A server, and an agent that talks to it."""

    dialect: Dialect
    server: Server
    agent_class: type[Any]
    url: str
    lives: int = 0

    def says(self, *answers: Answer | Reply) -> None:
        """The next replies of the server."""
        self.server.replies[:] = [
            stream(self.dialect.events(each)) if isinstance(each, Answer) else each
            for each in answers
        ]

    @asynccontextmanager
    async def hosted(self) -> AsyncIterator[tuple[Host, Any]]:
        """The agent, in a host of its own: what it knows comes from the store."""
        self.lives += 1
        async with hosting(self.agent_class, url=self.url, life=str(self.lives)) as host:
            yield host, host.get(self.agent_class, "a")

    def check(self, requests: int) -> Any:
        """As many requests as these, all of them valid. Returns the last one."""
        assert len(self.server.bodies) == requests
        for body in self.server.bodies:
            check_body(self.dialect, body)
        return self.server.bodies[-1]


@asynccontextmanager
async def talking(dialect: Dialect, url: str, **members: Any) -> AsyncIterator[Talk]:
    async with running() as server, dialect.model(server.url) as model:
        agent_class = type("Assistant", (Assistant,), {"model": model, **members})
        yield Talk(dialect, server, agent_class, url)


@pytest.mark.invariant("I1")
@every_dialect
async def test_two_calls_of_one_step_go_out_with_their_own_results(
    dialect: Dialect, sqlite_url: str
) -> None:
    async with talking(dialect, sqlite_url) as talk:
        talk.says(Answer(text=("Let me see. ",), calls=(ROME, BONN)), HELLO)
        async with talk.hosted() as (_, a):
            turn = await a.save_messages("u1")
            assert (turn.status, turn.message.text) == ("completed", "Let me see. Hello there.")
            assert outcomes(turn.message) == ["done", "done"]
        live = talk.check(2)
        assert results_of(dialect, live) == [("c2", "sunny in Rome"), ("c1", "sunny in Bonn")]
        talk.says(HELLO)
        async with talk.hosted() as (_, a):
            await a.save_messages("u2")
        assert results_of(dialect, talk.check(3)) == results_of(dialect, live)
        assert calls_of(dialect, talk.check(3)) == calls_of(dialect, live)
    assert sorted(ran) == ["Bonn", "Rome"]


@pytest.mark.invariant("I1")
@every_dialect
async def test_an_id_that_a_server_gives_twice_names_two_calls(
    dialect: Dialect, sqlite_url: str
) -> None:
    """Some servers number the calls of each answer from nought."""
    first, second = Call("c0", "weather", {"city": "Bonn"}), Call("c0", "weather", {"city": "Rome"})
    async with talking(dialect, sqlite_url) as talk:
        talk.says(Answer(calls=(first,)), Answer(calls=(second,)), HELLO)
        async with talk.hosted() as (host, a):
            turn = await a.save_messages("u1")
            inputs = [(part["input"]["city"], part["output"]) for part in call_parts(turn.message)]
            assert inputs == [("Bonn", "sunny in Bonn"), ("Rome", "sunny in Rome")]
            assert [state for _, state in await ledger(host)] == ["done", "done"]
        body = talk.check(3)
        assert [text for _, text in results_of(dialect, body)] == ["sunny in Bonn", "sunny in Rome"]
    assert ran == ["Bonn", "Rome"]


@pytest.mark.invariant("E20", "I1")
@every_dialect
async def test_signatures_of_thoughts_go_back_in_this_turn_and_in_the_next(
    dialect: Dialect, sqlite_url: str
) -> None:
    thinking = Answer(thoughts=("Let me ", "see."), text=("Well. ",), calls=(BONN,))
    expected = [] if isinstance(dialect, OpenAIChat) else [thinking.signature]
    async with talking(dialect, sqlite_url) as talk:
        talk.says(thinking, HELLO)
        async with talk.hosted() as (_, a):
            turn = await a.save_messages("u1")
            shown = [part["text"] for part in turn.message.parts if part["type"] == "reasoning"]
            assert shown == ["Let me see."]
        assert dialect.signatures(talk.check(2)) == expected
        talk.says(Answer(calls=(ROME,)), HELLO)
        async with talk.hosted() as (_, a):
            await a.save_messages("u2")
        for body in talk.server.bodies[2:]:
            assert dialect.signatures(body)[:1] == expected
        live, later = talk.server.bodies[1], talk.check(4)
        assert calls_of(dialect, later)[:1] == calls_of(dialect, live)
        for place in ("messages", "input", "contents"):
            if place in live:
                assert later[place][: len(live[place])] == live[place], "the same, word for word"


@dataclass
class City:
    name: str
    people: int


@every_dialect
async def test_an_answer_of_a_type_may_follow_a_tool(dialect: Dialect, sqlite_url: str) -> None:
    async def before_turn(self: Any, context: Any) -> TurnConfig:
        return TurnConfig(output=City)

    async with talking(dialect, sqlite_url, before_turn=before_turn) as talk:
        talk.says(Answer(calls=(BONN,)), Answer(text=('{"name": "Bonn", ', '"people": 330000}')))
        async with talk.hosted() as (_, a):
            turn = await a.save_messages("u1")
            assert (turn.status, turn.error) == ("completed", None)
            assert turn.output == City("Bonn", 330000)
        for body in talk.server.bodies:
            assert "people" in json.dumps(body), "the model is told what is wanted"
            assert "weather" in json.dumps(body.get("tools"))
        talk.check(2)


@pytest.mark.invariant("I1", "I4")
@pytest.mark.parametrize("arguments", [["Bonn"], "Bonn", None, {"town": "Bonn"}], ids=repr)
@every_dialect
async def test_arguments_that_do_not_fit_go_back_as_an_object_with_what_is_wrong(
    dialect: Dialect, sqlite_url: str, arguments: Any
) -> None:
    if isinstance(dialect, Gemini) and not isinstance(arguments, dict):
        return  # its arguments are an object in any case
    bad = Call("c1", "weather", arguments)
    async with talking(dialect, sqlite_url) as talk:
        talk.says(Answer(calls=(bad,)), HELLO)
        async with talk.hosted() as (_, a):
            turn = await a.save_messages("u1")
            assert (turn.status, outcomes(turn.message)) == ("completed", ["failed"])
        talk.says(HELLO)
        async with talk.hosted() as (_, a):
            await a.save_messages("u2")
        ((_, text),) = results_of(dialect, talk.check(3))
        assert "arguments are invalid" in text
    assert ran == []


# --- when the second step goes wrong -------------------------------------------------------------


async def check_goes_on(talk: Talk, requests: int, text: str) -> None:
    """The next message is answered, the tools are not run again, and what was said is still there."""
    before = list(ran)
    talk.says(HELLO)
    async with talk.hosted() as (host, a):
        await host.until_settled()
        message = (await a.get_messages())[1]
        assert (message.text, outcomes(message)) == (text, ["done", "done"])
        turn = await a.save_messages("u2")
        assert (turn.status, turn.message.text) == ("completed", "Hello there.")
    results = results_of(talk.dialect, talk.check(requests))
    assert results == [("c1", "sunny in Bonn"), ("c2", "sunny in Rome")]
    assert ran == before
    assert sorted(ran) == ["Bonn", "Rome"]


LOOK = Answer(text=("Let me see. ",), calls=(BONN, ROME))


@pytest.mark.invariant("I1", "I8")
@pytest.mark.parametrize("kind", KINDS)
@every_dialect
async def test_a_refusal_after_tools_keeps_what_they_did(
    dialect: Dialect, sqlite_url: str, kind: str
) -> None:
    refusal = dialect.error(kind)
    if refusal is None:
        return  # this provider does not say so
    async with talking(dialect, sqlite_url) as talk:
        talk.says(LOOK, refusal)
        async with talk.hosted() as (host, a):
            turn = await a.save_messages("u1")
            assert (turn.status, turn.message.text) == ("error", "Let me see. ")
            assert outcomes(turn.message) == ["done", "done"]
            assert sorted(await ledger(host)) == [("weather", "done")] * 2
        talk.check(2)
        await check_goes_on(talk, 3, "Let me see. ")


@pytest.mark.invariant("I1", "I8")
@pytest.mark.skipped_time
@pytest.mark.parametrize("end", ["error", "drop", "truncated", "hang"])
@every_dialect
async def test_an_answer_that_breaks_off_after_tools_keeps_what_they_did(
    dialect: Dialect, sqlite_url: str, end: str
) -> None:
    events = dialect.events(HELLO, finished=False)
    broken = {
        "error": stream([*events, dialect.error_event()]),
        "drop": stream(events, "drop"),
        "truncated": stream(events),
        "hang": stream(events, "hang"),
    }
    patience = 60 if end == "hang" else None
    async with talking(dialect, sqlite_url, chat_stream_stall_timeout=patience) as talk:
        talk.says(LOOK, broken[end])
        async with talk.hosted() as (_, a):
            asking = asyncio.create_task(a.save_messages("u1"))
            if end == "hang":
                await talk.server.is_hanging.wait()
                skip(60)
            turn = await asking
            assert (turn.status, turn.message.text) == ("error", "Let me see. Hello there.")
        await check_goes_on(talk, 3, "Let me see. Hello there.")


@pytest.mark.invariant("I1", "I8")
@every_dialect
async def test_a_refusal_that_passes_is_retried_without_running_the_tools_again(
    dialect: Dialect, sqlite_url: str
) -> None:
    refusal = dialect.error("rate_limit")
    assert refusal is not None
    refusal.headers["retry-after-ms"] = "20"
    async with talking(dialect, sqlite_url, max_retries=2) as talk:
        talk.says(LOOK, refusal, refusal, HELLO)
        async with talk.hosted() as (_, a):
            assert (await a.save_messages("u1")).status == "completed"
        assert talk.server.bodies[1] == talk.server.bodies[2] == talk.server.bodies[3]
        await check_goes_on(talk, 5, "Let me see. Hello there.")


# How many events bring the second half of the arguments of a call, and its end.
HALF = {"openai-chat": 1, "openai": 3, "anthropic": 2}


@pytest.mark.invariant("I1", "I2", "I7")
@pytest.mark.parametrize("is_half", [False, True])
@every_dialect
async def test_a_call_in_an_answer_that_breaks_off_does_not_run(
    dialect: Dialect, sqlite_url: str, is_half: bool
) -> None:
    if is_half and dialect.name not in HALF:
        return  # its calls come in one piece
    look = Answer(text=("Let me see. ",), thoughts=("Hm.",), calls=(BONN,))
    events = dialect.events(look, finished=False)
    async with talking(dialect, sqlite_url) as talk:
        talk.says(stream(events[: -HALF[dialect.name]] if is_half else events))
        async with talk.hosted() as (host, a):
            turn = await a.save_messages("u1")
            assert (turn.status, turn.message.text) == ("error", "Let me see. ")
            assert outcomes(turn.message) == ["failed"]
            assert await ledger(host) == []
        talk.says(HELLO)
        async with talk.hosted() as (_, a):
            assert (await a.save_messages("u2")).status == "completed"
        ((id, _),) = results_of(dialect, talk.check(2))
        assert id == "c1"
    assert ran == []


# --- when somebody has to allow it ---------------------------------------------------------------


@pytest.mark.invariant("I1", "I13", "I14")
@pytest.mark.parametrize("approved", [True, False])
@every_dialect
async def test_an_approval_in_a_later_life_leads_to_a_request_that_is_valid(
    dialect: Dialect, sqlite_url: str, approved: bool
) -> None:
    asking = Answer(thoughts=("Hm.",), text=("May I? ",), calls=(BONN, PAY))
    async with talking(dialect, sqlite_url) as talk:
        talk.says(asking)
        async with talk.hosted() as (_, a):
            turn = await a.save_messages("u1")
            assert outcomes(turn.message) == ["done", "open"]
        talk.says(HELLO)
        async with talk.hosted() as (host, a):
            assert await a.add_tool_approval("c3", approved, reason="Not today.")
            await host.until_settled()
            message = (await a.get_messages())[1]
            assert message.text == "May I? Hello there."
            assert outcomes(message) == ["done", "done" if approved else "denied"]
        text = '{"paid":5}' if approved else "Not today."
        results = [("c1", "sunny in Bonn"), ("c3", text)]
        assert results_of(dialect, talk.check(2)) == results
        if not isinstance(dialect, OpenAIChat):
            assert dialect.signatures(talk.server.bodies[1])[:1] == [asking.signature]
        async with talk.hosted() as (_, a):
            await a.save_messages("u2")
        assert results_of(dialect, talk.check(3)) == results
    assert ran == (["Bonn", "paid 5"] if approved else ["Bonn"])


@pytest.mark.invariant("I1", "I2")
@every_dialect
async def test_whoever_goes_on_without_answering_gets_a_request_that_is_valid(
    dialect: Dialect, sqlite_url: str
) -> None:
    async with talking(dialect, sqlite_url) as talk:
        talk.says(Answer(thoughts=("Hm.",), calls=(PAY, BONN)))
        async with talk.hosted() as (_, a):
            await a.save_messages("u1")
        talk.says(HELLO)
        async with talk.hosted() as (_, a):
            assert (await a.save_messages("u2")).status == "completed"
        (pay, weather) = results_of(dialect, talk.check(2))
        assert (pay[0], weather) == ("c3", ("c1", "sunny in Bonn"))
        assert "without answering" in pay[1]
    assert ran == ["Bonn"]
