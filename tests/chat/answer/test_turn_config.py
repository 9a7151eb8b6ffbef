"""What can be set for a turn, and how a turn ends that goes wrong."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from conversation import agent_of, answering, asked, inbox, leftovers, reasons, said, talker
from pydantic import BaseModel
from pydantic_ai.messages import ModelRequest

from outlast import (
    ActivationFailed,
    ContextOverflow,
    ProactiveCompaction,
    StepConfig,
    Think,
    TurnConfig,
    has_tool_call,
    step_count_is,
)
from outlast.chat.context.prompt import DEFAULT
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time


async def look(at: str = "left") -> str:
    """Look somewhere."""
    return f"seen {at}"


async def act() -> str:
    return "done"


def configured(model: Any, config: Any, **members: Any) -> type[Any]:
    """A class whose `before_turn` returns this."""

    async def before_turn(self: Any, context: Any) -> Any:
        return config(context) if callable(config) else config

    return talker(model, before_turn=before_turn, **members)


async def one_turn(url: str, Talker: type[Any], life: str = "1") -> Any:
    async with hosting(Talker, url=url, life=life) as host:
        turn = await host.get(Talker, "a").save_messages("u1")
        await host.until_settled()
        assert leftovers(agent_of(host, Talker)) == {}
        return turn


LOOKING = [Step.calls("look") for _ in range(20)]


# --- how long it goes on -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "members", "requests"),
    [
        (None, {}, 10),
        (None, {"max_steps": 3}, 3),
        (TurnConfig(max_steps=2), {"max_steps": 5}, 2),
        (TurnConfig(stop_when=step_count_is(4)), {}, 4),
        (TurnConfig(stop_when=[has_tool_call("act"), step_count_is(6)]), {}, 6),
        (TurnConfig(stop_when=has_tool_call("look")), {}, 1),
        (TurnConfig(stop_when=has_tool_call("other")), {}, 10),
        (TurnConfig(stop_when=lambda steps: steps[-1].number == 2), {}, 3),
        (TurnConfig(stop_when=step_count_is(4), max_steps=3), {}, 3),
    ],
)
async def test_a_turn_stops_after_so_many_steps(
    sqlite_url: str, config: Any, members: Any, requests: int
) -> None:
    model = ScriptedModel(*LOOKING)
    Talker = configured(model, config, get_tools=lambda _: [look, act], **members)
    turn = await one_turn(sqlite_url, Talker)
    assert turn.status == "completed"
    assert len(model.requests) == requests
    calls = [part for part in turn.message.parts if part["type"] == "tool-look"]
    assert [part["output"] for part in calls] == ["seen left"] * requests


async def test_a_turn_that_was_stopped_after_a_call_can_be_gone_on_with(world: World) -> None:
    model = ScriptedModel(Step.calls("look"), "I see.", by="request")
    Talker = configured(model, TurnConfig(max_steps=1), get_tools=lambda _: [look])
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = await a.save_messages("u1")
    second = await a.continue_last_turn()
    assert second.message.id == first.message.id
    assert second.message.text == "I see."
    assert len(await a.get_messages()) == 2
    assert isinstance(model.requests[1].messages[-1], ModelRequest)


async def test_a_condition_that_raises_is_an_error_of_the_turn(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(steps: Any) -> bool:
        raise ValueError("no idea")

    Talker = configured(
        ScriptedModel(*LOOKING), TurnConfig(stop_when=broken), get_tools=lambda _: [look]
    )
    turn = await one_turn(sqlite_url, Talker)
    assert (turn.status, turn.error) == ("error", "An error occurred.")
    assert "failed: ValueError: no idea" in caplog.text
    assert [p["output"] for p in turn.message.parts if p["type"] == "tool-look"] == ["seen left"]


# --- before_turn ---------------------------------------------------------------------------------


async def test_before_turn_may_be_a_plain_function(store_url: str) -> None:
    model, other = answering("no"), answering("yes")
    Talker = talker(model, before_turn=lambda _, context: TurnConfig(model=other))
    assert (await one_turn(store_url, Talker)).message.text == "yes"
    assert model.requests == []


@pytest.mark.parametrize("nonsense", [5, "text", {"model": "x"}, [], False])
async def test_before_turn_returning_nonsense_is_an_error_of_the_turn(
    sqlite_url: str, nonsense: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Talker = configured(model := answering("Hello"), lambda _: nonsense)
    turn = await one_turn(sqlite_url, Talker)
    assert turn.status == "error"
    assert "before_turn must return a TurnConfig or None" in caplog.text
    assert model.requests == []


@pytest.mark.invariant("C9")
async def test_before_turn_that_raises_ends_its_turn_and_no_other(world: World) -> None:
    class Picky(Think):
        model = answering("Hello")

        async def before_turn(self, context: Any) -> TurnConfig | None:
            if "bad" in asked_of(context):
                raise KeyError("bad")
            return None

    def asked_of(context: Any) -> str:
        return str(context.messages[-1].parts[0].content)

    host = await world.host(Picky)
    a = host.get(Picky, "a")
    turns = await asyncio.gather(*(a.save_messages(t) for t in ("one", "bad", "two")))
    assert [turn.status for turn in turns] == ["completed", "error", "completed"]
    assert [outcome for _, outcome in await inbox(host)] == ["completed", "error", "completed"]
    assert "user: bad" in said(await a.get_messages())


async def test_before_turn_is_told_what_there_is_to_know(world: World) -> None:
    seen: list[Any] = []

    def note(context: Any) -> None:
        seen.append(context)

    Talker = configured(answering("Hello", " again"), note, get_tools=lambda _: [look, act])
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = await a.save_messages("u1", body={"n": 1})
    second = await a.continue_last_turn()
    one, two = seen
    assert (one.request_id, one.message_id) == (first.request_id, first.message.id)
    assert (one.origin, one.continuation, one.body) == ("save", False, {"n": 1})
    assert (two.request_id, two.continuation) == (second.request_id, True)
    assert two.message_id == first.message.id
    assert set(one.tool_names) == {"look", "act"}
    assert "look" in one.system
    assert len(one.messages) == 1


# --- what the model is given ---------------------------------------------------------------------

SETTINGS = {
    "max_output_tokens": ("max_tokens", 7),
    "temperature": ("temperature", 0.5),
    "top_p": ("top_p", 0.25),
    "top_k": ("top_k", 3),
    "presence_penalty": ("presence_penalty", 1.0),
    "frequency_penalty": ("frequency_penalty", -1.0),
    "stop_sequences": ("stop_sequences", ["END"]),
    "seed": ("seed", 42),
    "timeout": ("timeout", 9.0),
    "headers": ("extra_headers", {"x-a": "b"}),
    "tool_choice": ("tool_choice", "required"),
}


async def test_the_settings_of_a_turn_reach_the_model_in_every_step(sqlite_url: str) -> None:
    given = {name: value for name, (_, value) in SETTINGS.items()}
    model = ScriptedModel(Step.calls("look"), "Done.")
    config = TurnConfig(**given, provider_options={"x_special": [1]})  # type: ignore[arg-type]
    await one_turn(sqlite_url, configured(model, config, get_tools=lambda _: [look]))
    assert len(model.requests) == 2
    for request in model.requests:
        settings: dict[str, Any] = dict(request.settings)
        assert {name: settings[name] for name, _ in SETTINGS.values()} == dict(SETTINGS.values())
        assert settings["x_special"] == [1]


async def test_a_turn_without_settings_leaves_them_to_the_model(sqlite_url: str) -> None:
    await one_turn(sqlite_url, talker(model := answering("Hello")))
    assert not {name for name, _ in SETTINGS.values()} & set(model.requests[0].settings)
    config = TurnConfig(timeout=timedelta(minutes=1), tool_choice=["look"])
    Talker = configured(model := answering("Hello"), config, get_tools=lambda _: [look, act])
    await one_turn(sqlite_url, Talker, "2")
    assert model.requests[0].settings["timeout"] == 60.0
    assert model.requests[0].settings["tool_choice"] == ["look"]


@pytest.mark.parametrize(
    ("config", "offered"),
    [
        (None, ["look", "act"]),
        (TurnConfig(active_tools=["act"]), ["act"]),
        (TurnConfig(active_tools=[]), []),
        (TurnConfig(tools={"more": act}), ["look", "act", "more"]),
        (TurnConfig(tools={"more": act}, active_tools=["more", "look"]), ["look", "more"]),
    ],
)
async def test_the_prompt_names_exactly_the_tools_that_are_offered(
    sqlite_url: str, config: Any, offered: list[str]
) -> None:
    Talker = configured(
        model := answering("Hello"), config, get_tools=lambda _: [look, act], system_prompt="Be."
    )
    await one_turn(sqlite_url, Talker)
    (request,) = model.requests
    assert sorted(request.tools) == sorted(offered)
    instructions = request.instructions or ""
    assert instructions.startswith("Be.\n\nCapabilities in this turn:")
    if offered:
        assert f"and no others: {', '.join(sorted(offered))}." in instructions
    else:
        assert "You have no tools in this turn" in instructions


@pytest.mark.parametrize("where", ["the turn", "the step"])
async def test_active_tools_that_do_not_exist_are_a_mistake(
    sqlite_world: World, where: str
) -> None:
    names = ["act", "lok"]
    members: dict[str, Any] = {"get_tools": lambda _: [look, act]}
    if where == "the step":
        members["before_step"] = lambda *_: StepConfig(active_tools=names)
    config = TurnConfig(active_tools=names) if where == "the turn" else None
    Talker = configured(model := answering("Hello"), config, **members)
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    (reason,) = await reasons(host)
    await sqlite_world.stop()
    assert turn.status == "error"
    assert "must name tools of this turn (act, look), got 'lok'" in str(reason)
    assert model.requests == []


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "3"])
async def test_a_turn_has_at_least_one_step(sqlite_world: World, most: Any) -> None:
    with pytest.raises(ValueError, match="max_steps must be an int of at least 1"):
        TurnConfig(max_steps=most)
    Talker = talker(answering("Hello"), max_steps=most)
    host = await sqlite_world.host(Talker)
    with pytest.raises(ActivationFailed, match="max_steps must be an int of at least 1"):
        await host.get(Talker, "a").get_messages()


@pytest.mark.parametrize("is_set_up", [True, False])
@pytest.mark.parametrize("kind", ["reactive", "proactive", "off"])
async def test_an_overflow_that_nothing_can_shorten_is_warned_of_at_the_start(
    sqlite_world: World, kind: str, is_set_up: bool, caplog: pytest.LogCaptureFixture
) -> None:
    overflow = {
        "reactive": ContextOverflow(reactive=True),
        "proactive": ContextOverflow(proactive=ProactiveCompaction(max_input_tokens=1000)),
        "off": ContextOverflow(),
    }[kind]
    members: dict[str, Any] = {"context_overflow": overflow}
    if is_set_up:
        members["configure_session"] = lambda _, session: session.on_compaction(lambda _: "short")
    Talker = talker(answering("Hello"), **members)
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await host.get(Talker, "a").save_messages("u2")
    await sqlite_world.stop()
    warned = [
        record
        for record in caplog.records
        if "there is no compaction function" in record.getMessage()
    ]
    assert len(warned) == (0 if is_set_up or kind == "off" else 1)


async def test_an_answer_that_is_continued_has_the_body_of_its_request(world: World) -> None:
    bodies: list[Any] = []

    def before_turn(self: Any, context: Any) -> None:
        bodies.append(dict(context.body))

    Talker = talker(answering("Hello"), before_turn=before_turn)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", body={"file": "a.py"})
    host = await world.next_life()
    a = host.get(Talker, "a")
    await a.continue_last_turn()
    await a.continue_last_turn()
    await a.continue_last_turn(body={})
    await a.continue_last_turn(body={"file": "b.py"})
    await a.continue_last_turn()
    await world.stop()
    first, other = {"file": "a.py"}, {"file": "b.py"}
    assert bodies == [first, first, first, {}, other, other]


async def test_a_tool_that_is_not_active_cannot_be_called(sqlite_url: str) -> None:
    model = ScriptedModel(Step.calls("act"), "I see.")
    Talker = configured(model, TurnConfig(active_tools=["look"]), get_tools=lambda _: [look, act])
    turn = await one_turn(sqlite_url, Talker)
    (part,) = [part for part in turn.message.parts if part["type"] == "tool-act"]
    assert part["errorText"] == "There is no tool 'act'. Available tools: look."


async def test_the_prompt_is_the_default_the_class_s_or_the_turn_s(store_url: str) -> None:
    class Prompted(Think):
        model = answering("Hello")

        def get_system_prompt(self) -> str:
            return f"You are {self.name}."

    cases = [
        (talker(answering("Hello")), DEFAULT),
        (talker(answering("Hello"), system_prompt="Be brief."), "Be brief."),
        (Prompted, "You are a."),
        (talker(answering("Hello"), system_prompt=""), "Capabilities"),
    ]
    for n, (Talker, start) in enumerate(cases):
        async with hosting(Talker, url=store_url, life=f"{n}") as host:
            await host.get(Talker, "a").save_messages("u")
        instructions = Talker.model.requests[-1].instructions
        assert instructions.startswith(start)
        assert instructions.count("Capabilities in this turn") == 1
    Talker = configured(model := answering("Hello"), TurnConfig(system="Only this."))
    await one_turn(store_url, Talker, "last")
    assert model.requests[0].instructions == "Only this."


async def test_messages_of_a_turn_replace_the_conversation_for_it_alone(world: World) -> None:
    def config(context: Any) -> Any:
        if context.body.get("alone"):
            return TurnConfig(messages=[ModelRequest.user_text_prompt("only this")])
        return None

    Talker = configured(model := answering("Hello"), config)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    await a.save_messages("u2", body={"alone": True})
    await a.save_messages("u3")
    assert [asked(request) for request in model.requests] == [
        ["u1"],
        ["only this"],
        ["u1", "u2", "u3"],
    ]
    assert len(await a.get_messages()) == 6


@pytest.mark.invariant("H3")
async def test_a_request_never_ends_with_the_model_s_own_words(world: World) -> None:
    Talker = talker(model := answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    await a.continue_last_turn()
    greeting = {"role": "assistant", "parts": [{"type": "text", "text": "Anything else?"}]}
    await a.add_messages(greeting)
    await a.continue_last_turn()
    await a.save_messages([greeting])
    assert len(model.requests) == 4
    for request in model.requests:
        assert isinstance(request.messages[-1], ModelRequest)
    texts = " ".join(said(await a.get_messages()))
    assert "interrupted" not in texts
    assert "Continue" not in texts


@pytest.mark.parametrize(
    ("of_class", "of_turn", "shown"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
async def test_reasoning_is_shown_or_not(
    sqlite_world: World, of_class: bool, of_turn: bool | None, shown: bool
) -> None:
    model = ScriptedModel(Step.reasoning("Let me think.") + "Hello")
    Talker = configured(model, TurnConfig(send_reasoning=of_turn), send_reasoning=of_class)
    host = await sqlite_world.host(Talker)
    chunks = [chunk["type"] async for chunk in host.get(Talker, "a").stream("u1")]
    assert ("reasoning-delta" in chunks) == shown
    answer = (await host.get(Talker, "a").get_messages())[1]
    assert answer.text == "Hello"
    assert ("reasoning" in [part["type"] for part in answer.parts]) == shown


# --- answers of a type ---------------------------------------------------------------------------


class City(BaseModel):
    """A city."""

    name: str
    people: int = 0


@dataclasses.dataclass
class Town:
    name: str


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (City, '{"name": "Rome", "people": 3}', City(name="Rome", people=3)),
        (City, '```json\n{"name": "Rome"}\n```', City(name="Rome")),
        (Town, ' {"name": "Bath"} ', Town("Bath")),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
    ],
)
async def test_an_answer_of_a_type_is_given_as_one(
    sqlite_url: str, kind: Any, text: str, value: Any
) -> None:
    Talker = configured(model := answering(Step.text(chunks=[text])), TurnConfig(output=kind))
    turn = await one_turn(sqlite_url, Talker)
    assert (turn.status, turn.output) == ("completed", value)
    assert turn.message.text == text
    assert model.requests[0].parameters.output_object is not None


@pytest.mark.parametrize("text", ["Rome", "{}", '{"name": 5}', "", '{"name": "Rome"'])
async def test_an_answer_that_is_not_of_the_type_is_an_error_and_is_kept(
    world: World, text: str
) -> None:
    Talker = configured(answering(Step.text(chunks=[text or " "])), TurnConfig(output=City))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turn = await a.save_messages("u1")
    assert (turn.status, turn.output) == ("error", None)
    assert "the answer does not validate as City" in (await reasons(host))[0]
    assert (await a.get_messages())[0].text == "u1"
    if text:
        assert (await a.get_messages())[1].text == text
    assert (await a.save_messages("u2")).status == "error"


async def test_an_answer_of_a_type_may_come_after_tools(store_url: str) -> None:
    model = ScriptedModel(Step.calls("look"), '{"name": "Rome"}')
    Talker = configured(model, TurnConfig(output=City), get_tools=lambda _: [look])
    turn = await one_turn(store_url, Talker)
    assert turn.output == City(name="Rome")
