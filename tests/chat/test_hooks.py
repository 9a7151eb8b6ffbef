"""Hooks: when each is called, what it is told, and what its answer does."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest
from conversation import agent_of, answering, asked, leftovers, rows, talker
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import InstrumentationSettings
from pydantic_ai.messages import (
    Citation,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolReturnPart,
    WebCitationSource,
)
from pydantic_ai.usage import UsageLimits

from outlast import Agent, Session, StepConfig, Think, ToolCall, TurnConfig, has_tool_call, tool
from outlast.core import json
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

HOOKS = (
    "configure_session",
    "before_turn",
    "before_step",
    "on_chunk",
    "before_tool_call",
    "after_tool_call",
    "on_step_finish",
    "on_chat_response",
)
AT_L = Step.calls("look", at="l")
BOTH = (
    Step.text("Let me look.", delay=0.1) + Step.calls("look", at="l") + Step.calls("look", at="r")
)


def looking(messages: list[ModelMessage]) -> str | Step:
    """Looks left and right at once, then says so; may have to ask somebody else first."""
    returned = {p.tool_name for p in messages[-1].parts if isinstance(p, ToolReturnPart)}
    if "look" in returned:
        return "I see."
    prompt = [p.content for m in messages for p in m.parts if p.part_kind == "user-prompt"][-1]
    return Step.calls(str(prompt)) if prompt in ("pick", "erase") and not returned else BOTH


class Looking(Think):
    """Its hooks note that they were called."""

    chat_recovery = False

    log: list[tuple[str, Any]] = []

    @tool(effect="read")
    async def look(self, at: str) -> str:
        await asyncio.sleep(2 if at == "l" else 1)
        self.log.append(("look", at))
        return f"seen {at}"

    @tool(needs_approval=True)
    async def erase(self) -> str:
        return "erased"

    async def later(self) -> None:
        await self.submit_messages("look")


def noting(name: str, plain: bool) -> Callable[..., Any]:
    """A hook that notes what it was told."""

    def note(self: Looking, told: Any) -> Any:
        self.log.append((name, told))
        return told if name == "configure_session" else None

    async def note_later(self: Looking, told: Any) -> Any:
        await asyncio.sleep(0)
        return note(self, told)

    return note if plain else note_later


class Deaf:
    def on_event(self, chunk: str) -> None: ...


async def _read(a: Any) -> None:
    async for _ in a.stream("look"):
        pass


async def _after_one(a: Any, how: str) -> None:
    await a.save_messages("look")
    await getattr(a, how)()


async def _schedule(a: Any) -> None:
    await a.schedule(5, "later")
    await asyncio.sleep(10)


async def _sub_agent(a: Any) -> None:
    await a.delegate()


async def _client_tool(a: Any) -> None:
    turn = await a.save_messages("pick", client_tools=[{"name": "pick", "parameters": {}}])
    assert await a.add_tool_output(turn.message.parts[-1]["toolCallId"], "red")


async def _approval(a: Any) -> None:
    turn = await a.save_messages("erase")
    assert await a.add_tool_approval(turn.message.parts[-1]["toolCallId"], approved=True)


PATHS: dict[str, Callable[[Any], Any]] = {
    "save_messages": lambda a: a.save_messages("look"),
    "chat": lambda a: a.chat("look", Deaf()),
    "stream": _read,
    "submit_messages": lambda a: a.submit_messages("look"),
    "continue_last_turn": lambda a: _after_one(a, "continue_last_turn"),
    "run_turn, wait": lambda a: a.run_turn("look"),
    "run_turn, submit": lambda a: a.run_turn("look", mode="submit"),
    "run_turn, stream": lambda a: a.run_turn("look", mode="stream", callback=Deaf()),
    "regenerate": lambda a: _after_one(a, "regenerate"),
    "a schedule": _schedule,
    "a sub-agent": _sub_agent,
    "a client's tool": _client_tool,
    "an approval": _approval,
}
IN_ORDER = [
    ("before_turn", None),
    ("before_step", 0),
    ("before_tool_call", "l"),
    ("before_tool_call", "r"),
    ("look", "r"),
    ("after_tool_call", "r"),
    ("look", "l"),
    ("after_tool_call", "l"),
    ("on_step_finish", 0),
    ("before_step", 1),
    ("on_step_finish", 1),
    ("on_chat_response", "completed"),
]
CONTINUING = ("continue_last_turn", "a client's tool", "an approval")


def what(told: Any) -> Any:
    """The one thing that tells a call of a hook from another one of it."""
    if isinstance(told, str):
        return told
    if hasattr(told, "input"):
        return told.input.get("at", told.tool_name)
    return getattr(told, "step_number", getattr(told, "status", None))


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
@pytest.mark.parametrize("path", PATHS)
async def test_every_hook_is_called_in_order_however_the_turn_was_started(
    world: World, path: str, plain: bool
) -> None:
    log: list[tuple[str, Any]] = []
    members = {"log": log, "model": ScriptedModel.answering(looking)}
    Talker = type("Talker", (Looking,), {**members, **{h: noting(h, plain) for h in HOOKS}})

    class Parent(Agent):
        sub_agents = [Talker]

        async def delegate(self) -> None:
            await (await self.sub_agent(Talker, "c")).chat("look", Deaf())

    host = await world.host(Talker, Parent)
    await PATHS[path](host.get(Parent if path == "a sub-agent" else Talker, "a"))
    await host.until_settled()
    stored = await rows(host, "streams", "turn, body", "turn, seq")
    await world.stop()
    assert [name for name, _ in log].count("configure_session") == 1
    assert log[0][0] == "configure_session"
    begun = max(n for n, (name, _) in enumerate(log) if name == "before_turn")
    id = log[begun][1].request_id
    called = [each for each in log[begun:] if getattr(each[1], "request_id", id) == id]
    expected = list(IN_ORDER)
    if path == "an approval":
        expected[1:1] = [("before_tool_call", "erase"), ("after_tool_call", "erase")]
    assert [(name, what(told)) for name, told in called if name != "on_chunk"] == expected
    assert log[begun][1].continuation == log[-1][1].continuation == (path in CONTINUING)
    # Chunks come as soon as they are durable: those of a step before the step is called finished.
    chunks = [told for name, told in called if name == "on_chunk"]
    first = [name == "before_tool_call" and what(told) == "l" for name, told in called].index(True)
    assert "text-delta" in [c.chunk["type"] for name, c in called[:first] if name == "on_chunk"]
    bodies = [line for turn, body in stored if turn == id for line in body.split("\n")]
    assert [each.chunk for each in chunks] == [json.decode(line) for line in bodies]
    assert [each.seq for each in chunks] == list(range(len(bodies)))
    for n, (name, told) in enumerate(called):
        if name == "on_step_finish":
            so_far = [each.chunk["type"] for hook, each in called[:n] if hook == "on_chunk"]
            assert so_far.count("finish-step") == told.step_number + 1
            assert so_far[-1] == "finish-step"


# --- what a hook returns -------------------------------------------------------------------------

OTHER = answering("Other.", name="other")
SPANS = InMemorySpanExporter()
TRACED = TracerProvider()
TRACED.add_span_processor(SimpleSpanProcessor(SPANS))
ONLY_THIS = [ModelRequest.user_text_prompt("only this")]


@dataclasses.dataclass
class Seen:
    """What came of a turn whose model fails once, looks in two directions and says what it sees."""

    turn: Any
    requests: list[Any]
    chunks: list[str]

    @property
    def request(self) -> Any:
        return self.requests[-1] if self.requests else None

    def setting(self, name: str) -> Any:
        return None if self.request is None else self.request.settings.get(name)


OF_A_TURN: dict[str, tuple[Any, Callable[[Seen], bool]]] = {
    "model": (OTHER, lambda s: s.turn.message.text == "Other."),
    "system": ("Only this.", lambda s: s.request.instructions == "Only this."),
    "messages": (ONLY_THIS, lambda s: asked(s.request) == ["only this"]),
    "tools": ({"more": len}, lambda s: "more" in s.request.tools),
    "active_tools": ([], lambda s: s.request.tools == []),
    "tool_choice": ("required", lambda s: s.setting("tool_choice") == "required"),
    "max_steps": (1, lambda s: len(s.requests) == 2),
    "stop_when": (has_tool_call("look"), lambda s: len(s.requests) == 2),
    "send_reasoning": (False, lambda s: "reasoning-delta" not in s.chunks),
    "output": (list[int], lambda s: s.request.parameters.output_object is not None),
    "max_output_tokens": (7, lambda s: s.setting("max_tokens") == 7),
    "temperature": (0.5, lambda s: s.setting("temperature") == 0.5),
    "top_p": (0.2, lambda s: s.setting("top_p") == 0.2),
    "top_k": (3, lambda s: s.setting("top_k") == 3),
    "presence_penalty": (1.0, lambda s: s.setting("presence_penalty") == 1.0),
    "frequency_penalty": (1.0, lambda s: s.setting("frequency_penalty") == 1.0),
    "stop_sequences": (["END"], lambda s: s.setting("stop_sequences") == ["END"]),
    "seed": (4, lambda s: s.setting("seed") == 4),
    "max_retries": (0, lambda s: s.turn.status == "error" and len(s.requests) == 1),
    "timeout": (9, lambda s: s.setting("timeout") == 9),
    "headers": ({"x": "y"}, lambda s: s.setting("extra_headers") == {"x": "y"}),
    "provider_options": ({"x_own": 1}, lambda s: s.setting("x_own") == 1),
    "telemetry": (
        InstrumentationSettings(tracer_provider=TRACED),
        lambda s: len(SPANS.get_finished_spans()) == len(s.requests),
    ),
    "usage_limits": (UsageLimits(request_limit=1), lambda s: s.turn.status == "error"),
    "chat_stream_stall_timeout": (0.05, lambda s: "stopped answering" in (s.turn.error or "")),
}


ELSEWHERE = {"continuation"}  # it has an effect after an interruption: test_continued_text


@pytest.mark.parametrize(
    "field", sorted({each.name for each in dataclasses.fields(TurnConfig)} - ELSEWHERE)
)
async def test_every_field_of_a_turn_s_config_has_its_effect(sqlite_url: str, field: str) -> None:
    value, has_effect = OF_A_TURN[field]

    async def seen(config: Any) -> Seen:
        SPANS.clear()
        thought = Step.reasoning("Hm.")
        model = answering(Step.fails("connection"), thought + BOTH, thought + "I see.")
        Talker = talker(model, before_turn=lambda *_: config, look=Looking.look, log=[])
        async with hosting(Talker, url=sqlite_url, life=str(config is None)) as host:
            a = host.get(Talker, str(config is None))
            turn = await a.save_messages("u1")
            chunks = [chunk["type"] async for _, chunk in a.resume_stream(turn.request_id)]
        return Seen(turn, model.requests, chunks)

    assert has_effect(await seen(TurnConfig(**{field: value})))
    assert not has_effect(await seen(None))


OF_A_STEP: dict[str, tuple[Any, Callable[[Any, Any], bool]]] = {
    "model": (
        ScriptedModel(AT_L, AT_L, name="other"),
        lambda _, response: response.model_name == "other",
    ),
    "system": ("Only this.", lambda request, _: request.instructions == "Only this."),
    "messages": (ONLY_THIS, lambda request, _: asked(request) == ["only this"]),
    "active_tools": ([], lambda request, _: request.tools == []),
    "tool_choice": ("none", lambda request, _: request.settings.get("tool_choice") == "none"),
    "provider_options": (
        {"x_step": 1},
        lambda r, _: (r.settings["x_turn"], r.settings.get("x_step")) == (1, 1),
    ),
}


@pytest.mark.parametrize("field", OF_A_STEP)
async def test_every_field_of_a_step_s_config_has_its_effect_on_that_step_alone(
    sqlite_world: World, field: str
) -> None:
    assert OF_A_STEP.keys() | {"context"} == {each.name for each in dataclasses.fields(StepConfig)}
    value, has_effect = OF_A_STEP[field]
    model = ScriptedModel(AT_L, AT_L, AT_L, "I see.")
    done: list[Any] = []

    class Stepping(Looking):
        async def before_turn(self, context: Any) -> TurnConfig:
            return TurnConfig(provider_options={"x_turn": 1})

        async def before_step(self, context: Any) -> StepConfig | None:
            return StepConfig(**{field: value}) if context.step_number == 1 else None

        async def on_step_finish(self, context: Any) -> None:
            done.append(context.response)

    Stepping.model = model
    host = await sqlite_world.host(Stepping)
    assert (await host.get(Stepping, "a").save_messages("u1")).message.text == "I see."
    await sqlite_world.stop()
    requests = list(model.requests)
    if field == "model":
        assert len(requests) == 3
        requests.insert(1, value.requests.pop())
    found = [has_effect(*each) for each in zip(requests, done, strict=True)]
    assert found == [False, True, False, False]


async def test_the_context_of_a_step_reaches_its_tools_and_hooks_and_those_of_later_steps(
    sqlite_world: World,
) -> None:
    seen: list[Any] = []

    class Tenant(Think):
        model = ScriptedModel(Step.calls("look"), Step.calls("look"), Step.calls("look"), "I see.")

        @tool(effect="read")
        async def look(self, call: ToolCall) -> str:
            seen.append(("tool", call.context))
            return "seen"

        def before_step(self, context: Any) -> StepConfig | None:
            seen.append(("before_step", context.context))
            given = {1: {"tenant": "t1"}, 2: {"tenant": "t2"}}.get(context.step_number)
            return None if given is None else StepConfig(context=given)

        def before_tool_call(self, context: Any) -> None:
            seen.append(("before_tool_call", context.context))

        def after_tool_call(self, context: Any) -> None:
            seen.append(("after_tool_call", context.context))

        def on_step_finish(self, context: Any) -> None:
            seen.append(("on_step_finish", context.context))

    host = await sqlite_world.host(Tenant)
    await host.get(Tenant, "a").save_messages("u1")
    first, seen = seen, []
    await host.get(Tenant, "a").save_messages("u2")
    await sqlite_world.stop()
    assert seen == first, "it ends with its turn"
    t1, t2 = {"tenant": "t1"}, {"tenant": "t2"}
    by_hook = {name: [value for each, value in seen if each == name] for name, _ in seen}
    for name in ("tool", "before_tool_call", "after_tool_call"):
        assert by_hook[name] == [None, t1, t2]
    assert by_hook["before_step"] == [None, None, t1, t2]
    assert by_hook["on_step_finish"] == [None, t1, t2, t2]


async def test_a_step_s_record_holds_its_request_and_what_the_model_cites(
    sqlite_world: World,
) -> None:
    done: list[Any] = []

    class Recording(Looking):
        model = answering(Step.reasoning("Hm.") + AT_L, "I see.")

        def on_step_finish(self, context: Any) -> None:
            done.append(context)

    host = await sqlite_world.host(Recording)
    await host.get(Recording, "a").save_messages("u1")
    await sqlite_world.stop()
    one, two = done
    (thought,) = one.reasoning
    assert isinstance(thought, ThinkingPart)
    assert (thought.content, one.reasoning_text, list(two.reasoning)) == ("Hm.", "Hm.", [])
    assert [message.kind for message in one.request.messages] == ["request"]
    assert [message.kind for message in two.request.messages] == ["request", "response", "request"]
    assert {each.name for each in one.request.parameters.function_tools} == {"look", "erase"}
    assert one.request.instructions == Recording.model.requests[0].instructions
    assert (list(one.sources), list(one.warnings)) == ([], [])

    page, other = (WebCitationSource(url=f"https://example.org/{n}") for n in (1, 2))
    texts = [
        TextPart("a", citations=[Citation([page]), Citation([other, page])]),
        TextPart("b", citations=[Citation([page])]),
    ]
    response = ModelResponse(parts=texts, provider_details={"warnings": ["top_k is ignored"]})
    cited = dataclasses.replace(one, response=response)
    assert cited.sources == [page, other]
    assert cited.warnings == ["top_k is ignored"]


async def test_something_can_be_stashed_in_on_chunk(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Stashing(Think):
        model = answering(Step.text("one two ", delay=0.1) + Step.stalls(100) + "three")

        async def on_chunk(self, context: Any) -> None:
            await self.stash({"seq": context.seq})

    host = await world.host(Stashing)
    waiting = asyncio.create_task(host.get(Stashing, "a").save_messages("u1"))
    await asyncio.sleep(10)
    ((stash,),) = await rows(host, "incidents", "stash")
    chunks = sum(count for (count,) in await rows(host, "streams", "count"))
    assert json.decode(stash) == {"seq": chunks - 1}
    assert (await waiting).status == "completed"
    await host.until_settled()
    assert await rows(host, "incidents", "stash") == []
    await world.stop()
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize("of", ["turn", "step"])
async def test_other_messages_do_not_cost_the_model_its_instructions(
    sqlite_world: World, of: str
) -> None:
    def before_turn(self: Any, context: Any) -> Any:
        return TurnConfig(messages=ONLY_THIS) if of == "turn" else None

    def before_step(self: Any, context: Any) -> Any:
        return StepConfig(messages=ONLY_THIS) if of == "step" else None

    Talker = talker(
        model := answering("Hello"),
        before_turn=before_turn,
        before_step=before_step,
        system_prompt="Be brief.",
    )
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await sqlite_world.stop()
    (request,) = model.requests
    assert asked(request) == ["only this"]
    assert (request.instructions or "").startswith("Be brief.")


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
async def test_a_session_says_what_the_model_is_shown(store_url: str, plain: bool) -> None:
    sessions = {
        "as it is": (lambda s: s, "Class.", ["u1", "u2", "u3"]),
        "prompt": (lambda s: s.with_system_prompt("Session."), "Session.", ["u1", "u2", "u3"]),
        "messages": (lambda s: s.with_window(messages=4), "Class.", ["u2", "u3"]),
        "characters": (lambda s: s.with_window(characters=1), "Class.", ["u3"]),
        "both": (lambda s: s.with_system_prompt("S").with_window(messages=1), "S", ["u3"]),
    }
    for name, (session, prompt, shown) in sessions.items():

        async def configure(self: Any, given: Session, session: Any = session) -> Session:
            await asyncio.sleep(1)
            return session(given)

        hook = (lambda _, given, session=session: session(given)) if plain else configure
        Talker = talker(model := answering("Hello"), configure_session=hook, system_prompt="Class.")
        async with hosting(Talker, url=store_url, life=name) as host:
            for n in range(1, 4):
                await host.get(Talker, name).save_messages(f"u{n}")
            assert len(await host.get(Talker, name).get_messages()) == 6
        assert asked(model.requests[-1]) == shown
        assert model.requests[-1].instructions.startswith(f"{prompt}\n\nCapabilities")


# --- what a hook is told -------------------------------------------------------------------------


async def test_the_hooks_of_a_step_are_told_what_there_is_to_know(world: World) -> None:
    pick = {"name": "pick", "description": "Pick a colour."}
    first = Step.reasoning("Hm.") + Step.text("Let me look.") + AT_L
    second = Step.text("And you?") + AT_L + Step.calls("pick", colour="red")
    model = ScriptedModel(first, second)
    log: list[tuple[str, Any]] = []
    Talker = type("Talker", (Looking,), {"log": log, **{h: noting(h, True) for h in HOOKS}})
    Talker.model = model
    host = await world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1", client_tools=[pick])
    await host.until_settled()
    assert leftovers(agent_of(host, Talker)) == {}
    await world.stop()
    told = {name: [each for hook, each in log if hook == name] for name in HOOKS}

    one, two = told["before_step"]
    assert (one.request_id, one.step_number, one.steps) == (turn.request_id, 0, ())
    assert (one.model, one.signal.is_set) == (model, False)
    assert set(one.tool_names) == {"look", "erase", "pick"}
    assert [message.kind for message in one.messages] == ["request"]
    assert [message.kind for message in two.messages] == ["request", "response", "request"]
    assert [(step.number, step.tool_names) for step in two.steps] == [(0, ("look",))]

    before, after = told["before_tool_call"][0], told["after_tool_call"][0]
    for call in (before, after):
        assert (call.tool_name, call.input, call.step_number) == ("look", {"at": "l"}, 0)
        assert call.tool_call_id == call.messages[-1].tool_calls[0].tool_call_id
        assert call.request_id == turn.request_id
    assert before.signal is one.signal
    assert [call.step_number for call in told["after_tool_call"]] == [0, 1]

    one, two = told["on_step_finish"]
    assert (one.text, one.reasoning_text, one.finish_reason) == ("Let me look.", "Hm.", "tool_call")
    assert one.usage.input_tokens > 0
    assert [call.tool_name for call in two.tool_calls] == ["look", "pick"]
    looked, picked = two.tool_results
    assert (looked.output, looked.error, looked.is_open) == ("seen l", None, False)
    assert (picked.tool_name, picked.input, picked.is_open) == ("pick", {"colour": "red"}, True)

    (response,) = told["on_chat_response"]
    assert (response.request_id, response.message) == (turn.request_id, turn.message)
    assert (response.status, response.continuation, response.error) == ("completed", False, None)
