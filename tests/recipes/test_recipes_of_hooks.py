"""What applications do in hooks: each example of the guide, with what it promises."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import pytest
from conversation import answering
from pydantic import BaseModel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.usage import RequestUsage

from outlast import (
    ChatErrorClassification,
    ChatErrorContext,
    ChatResponseResult,
    ContextOverflow,
    PrepareStepContext,
    StepConfig,
    StepContext,
    Think,
    ToolCallContext,
    ToolCallDecision,
    ToolCallResultContext,
    TurnConfig,
    TurnContext,
    default_context_overflow_classifier,
    tool,
)
from outlast.testing import Step
from support import World

pytestmark = pytest.mark.virtual_time

ASK = [{"name": "ask_user", "parameters": {"type": "object"}}]
TOO_LONG = ModelHTTPError(400, "m", {"error": {"message": "prompt is too long: 9 > 5 maximum"}})


async def continued(host: Any, agent_class: type[Any]) -> Any:
    """An agent whose first turn calls a tool of the client, and goes on with its result."""
    agent = host.get(agent_class, "a")
    await agent.save_messages("Hi", client_tools=ASK)
    await agent.add_tool_output("q", "Paris")
    await host.until_settled()
    return agent


QUESTION = Step.call("ask_user", {}, id="q")


# --- before a turn -------------------------------------------------------------------------------


async def test_a_cheaper_model_answers_continuations(world: World) -> None:
    class MyAgent(Think):
        model = answering(QUESTION, "Expensive.")
        cheap_model = answering("Cheap.")

        def before_turn(self, context: TurnContext) -> TurnConfig | None:
            return TurnConfig(model=self.cheap_model) if context.continuation else None

    host = await world.host(MyAgent)
    agent = await continued(host, MyAgent)
    assert (await agent.get_messages())[-1].text == "Cheap."
    assert (await agent.save_messages("And now?")).message.text == "Expensive."
    await world.stop()
    assert len(MyAgent.cheap_model.requests) == 1


async def test_the_model_can_call_the_active_tools_and_no_others(world: World) -> None:
    deleted: list[str] = []

    class MyAgent(Think):
        model = answering(Step.calls("delete", path="/"), "I cannot.")

        @tool(effect="read")
        async def read(self) -> str:
            """Read."""
            return "text"

        @tool
        async def write(self) -> str:
            """Write."""
            return "written"

        @tool(effect="read", name="getWeather")
        async def get_weather(self) -> str:
            """Weather."""
            return "sunny"

        @tool
        async def delete(self, path: str) -> str:
            """Delete."""
            deleted.append(path)
            return "gone"

        def before_turn(self, context: TurnContext) -> TurnConfig:
            return TurnConfig(active_tools=["read", "write", "getWeather"])

    host = await world.host(MyAgent)
    turn = await host.get(MyAgent, "a").save_messages("Delete everything")
    await world.stop()
    assert turn.message.text == "I cannot."
    offered = [each.name for each in MyAgent.model.requests[0].parameters.function_tools]
    assert sorted(offered) == ["getWeather", "read", "write"]
    assert deleted == []


async def test_what_the_client_sends_along_is_part_of_that_turn_s_prompt(world: World) -> None:
    class MyAgent(Think):
        model = answering("Fine.")
        system_prompt = "You are an editor."

        def before_turn(self, context: TurnContext) -> TurnConfig | None:
            if file := context.body.get("selectedFile"):
                return TurnConfig(system=f"{context.system}\n\nUser is editing: {file}")
            return None

    host = await world.host(MyAgent)
    agent = host.get(MyAgent, "a")
    await agent.save_messages("Hi", body={"selectedFile": "main.py"})
    await agent.save_messages("Hi again")
    await world.stop()
    systems = [request.messages[-1].instructions or "" for request in MyAgent.model.requests]
    assert "You are an editor." in systems[0]
    assert "User is editing: main.py" in systems[0]
    assert "User is editing" not in systems[1]


async def test_reasoning_is_hidden_in_continuations_alone(world: World) -> None:
    thinking = Step.reasoning("Hm.")

    class MyAgent(Think):
        model = answering(thinking + QUESTION, thinking + Step.text("Paris."))

        def before_turn(self, context: TurnContext) -> TurnConfig | None:
            return TurnConfig(send_reasoning=False) if context.continuation else None

    host = await world.host(MyAgent)
    agent = await continued(host, MyAgent)
    [_, answer] = await agent.get_messages()
    await world.stop()
    types = [part["type"] for part in answer.parts]
    assert types.count("reasoning") == 1
    assert types.index("reasoning") < types.index("tool-ask_user"), "that of the first turn"
    assert answer.text == "Paris."


class Result(BaseModel):
    severity: Literal["low", "high"]


async def test_an_answer_is_structured_if_the_client_asks_for_that(world: World) -> None:
    class MyAgent(Think):
        model = answering(Step.text('{"severity": "high"}'), "It is severe.")

        @tool(effect="read")
        async def look(self) -> str:
            """Look."""
            return "seen"

        def before_turn(self, context: TurnContext) -> TurnConfig | None:
            if context.body.get("mode") == "structured-answer":
                return TurnConfig(output=Result, active_tools=[])
            return None

    host = await world.host(MyAgent)
    agent = host.get(MyAgent, "a")
    structured = await agent.save_messages("How bad?", body={"mode": "structured-answer"})
    plain = await agent.save_messages("How bad?")
    await world.stop()
    assert (structured.status, structured.output) == ("completed", Result(severity="high"))
    assert (plain.output, plain.message.text) == (None, "It is severe.")
    first, second = (request.parameters for request in MyAgent.model.requests)
    assert first.function_tools == []
    assert [each.name for each in second.function_tools] == ["look"]


# --- before a step and a call --------------------------------------------------------------------


async def test_after_the_first_step_no_tool_can_be_called(world: World) -> None:
    class MyAgent(Think):
        model = answering(Step.calls("look"), "Seen.")

        @tool(effect="read")
        async def look(self) -> str:
            """Look."""
            return "seen"

        def before_step(self, context: PrepareStepContext) -> StepConfig | None:
            return StepConfig(active_tools=[]) if context.step_number > 0 else None

    host = await world.host(MyAgent)
    turn = await host.get(MyAgent, "a").save_messages("Look")
    await world.stop()
    assert turn.message.text == "Seen."
    offered = [request.parameters.function_tools for request in MyAgent.model.requests]
    assert [[each.name for each in tools] for tools in offered] == [["look"], []]


class Assistant(Think):
    """Deletes nothing in read-only mode, and asks for no weather that it knows."""

    executed: list[str] = []
    points: list[tuple[str, int]] = []
    is_read_only_mode = True

    def __init__(self) -> None:
        self.weather_cache = {'{"city": "Paris"}': "sunny, as before"}

    @tool
    async def delete(self, path: str) -> str:
        """Delete."""
        self.executed.append("delete")
        return "gone"

    @tool(effect="read")
    async def weather(self, city: str) -> str:
        """Weather."""
        self.executed.append(f"weather in {city}")
        if city == "Atlantis":
            raise LookupError("no such city")
        return f"rain in {city}"

    def before_tool_call(self, context: ToolCallContext) -> ToolCallDecision | None:
        if context.tool_name == "delete" and self.is_read_only_mode:
            return {"action": "block", "reason": "delete is disabled in read-only mode"}
        if context.tool_name == "weather":
            cached = self.weather_cache.get(json.dumps(context.input))
            if cached:
                return {"action": "substitute", "output": cached}
        return None

    def after_tool_call(self, context: ToolCallResultContext) -> None:
        if not context.success:
            return
        self.points.append((context.tool_name, len(json.dumps(context.output))))


async def test_calls_are_blocked_and_answered_from_a_cache_and_counted(world: World) -> None:
    class MyAgent(Assistant):
        model = answering(
            Step.call("delete", {"path": "/"}, id="d")
            + Step.call("weather", {"city": "Paris"}, id="p")
            + Step.call("weather", {"city": "Oslo"}, id="o")
            + Step.call("weather", {"city": "Atlantis"}, id="a"),
            "Done.",
        )
        executed: list[str] = []
        points: list[tuple[str, int]] = []

    host = await world.host(MyAgent)
    turn = await host.get(MyAgent, "a").save_messages("Go")
    await world.stop()
    found = {part["toolCallId"]: part for part in turn.message.parts if "toolCallId" in part}
    assert found["d"]["output"] == "delete is disabled in read-only mode"
    assert found["p"]["output"] == "sunny, as before"
    assert found["o"]["output"] == "rain in Oslo"
    assert found["a"]["state"] == "output-error"
    assert sorted(MyAgent.executed) == ["weather in Atlantis", "weather in Oslo"]
    read = [
        part.content
        for message in MyAgent.model.requests[1].messages
        for part in message.parts
        if part.part_kind == "tool-return"
    ]
    assert read[:3] == ["delete is disabled in read-only mode", "sunny, as before", "rain in Oslo"]
    assert sorted(MyAgent.points) == [
        ("delete", len('"delete is disabled in read-only mode"')),
        ("weather", len('"rain in Oslo"')),
        ("weather", len('"sunny, as before"')),
    ], "blocked and substituted calls are successes; what raised is none"


# --- after a step and a turn ---------------------------------------------------------------------


async def test_each_step_says_what_it_has_used(world: World) -> None:
    lines: list[str] = []

    class MyAgent(Think):
        model = answering(
            Step.calls("look") + Step(usage=RequestUsage(input_tokens=12, output_tokens=3)),
            Step.text("Seen.", usage=RequestUsage(input_tokens=20, output_tokens=5)),
        )

        @tool(effect="read")
        async def look(self) -> str:
            """Look."""
            return "seen"

        def on_step_finish(self, context: StepContext) -> None:
            usage = context.usage
            lines.append(
                f"Step {context.step_number} ({context.finish_reason}): "
                f"{usage.input_tokens}in/{usage.output_tokens}out"
            )

    host = await world.host(MyAgent)
    await host.get(MyAgent, "a").save_messages("Look")
    await world.stop()
    assert lines == ["Step 0 (tool_call): 12in/3out", "Step 1 (stop): 20in/5out"]


async def test_an_answer_is_told_when_it_is_stored_and_may_lead_to_the_next(world: World) -> None:
    lines: list[str] = []

    class MyAgent(Think):
        model = answering("Hello.", "And more.", Step.fails("rejected"))
        max_retries = 0

        async def on_chat_response(self, result: ChatResponseResult) -> None:
            if result.status == "completed":
                lines.append(f"Turn {result.request_id}: {len(result.message.parts)} parts")
                if len(lines) == 1:  # the turn is over, so that another one can be waited for
                    await self.save_messages("More")

    host = await world.host(MyAgent)
    agent = host.get(MyAgent, "a")
    turn = await agent.save_messages("Hi")
    await host.until_settled()
    assert [m.text for m in await agent.get_messages()] == ["Hi", "Hello.", "More", "And more."]
    await agent.save_messages("Fail")
    await host.until_settled()
    await world.stop()
    assert lines[0] == f"Turn {turn.request_id}: {len(turn.message.parts)} parts"
    assert len(lines) == 2, "a turn that fails before it has said anything is no response"


# --- errors --------------------------------------------------------------------------------------


class Apologetic(Think):
    max_retries = 0
    context_overflow = ContextOverflow(reactive=True)
    classify_chat_error = default_context_overflow_classifier

    def on_chat_error(self, error: Exception, context: ChatErrorContext) -> Exception:
        if context.classification == "context_overflow":
            return Exception("This conversation is too long to continue. Please start a new one.")
        return Exception("Something went wrong. Please try again.")


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (TOO_LONG, "This conversation is too long to continue. Please start a new one."),
        ("rejected", "Something went wrong. Please try again."),
    ],
    ids=["too long", "anything else"],
)
async def test_users_read_the_text_that_fits_the_error(
    world: World, failure: Any, text: str
) -> None:
    MyAgent = type("MyAgent", (Apologetic,), {"model": answering(Step.fails(failure))})
    host = await world.host(MyAgent)
    turn = await host.get(MyAgent, "a").save_messages("Hi")
    await world.stop()
    assert (turn.status, turn.error) == ("error", text)


async def test_a_classifier_of_one_s_own_may_delegate_to_the_bundled_one(world: World) -> None:
    classified: list[Any] = []

    class MyAgent(Apologetic):
        model = answering(Step.fails(RuntimeError("Rate limit!")), Step.fails(TOO_LONG))

        def classify_chat_error(
            self, error: Exception, context: ChatErrorContext
        ) -> ChatErrorClassification | None:
            if re.search(r"rate.?limit", str(error), re.IGNORECASE):
                verdict: ChatErrorClassification | None = "rate_limit"
            else:
                verdict = default_context_overflow_classifier(error)
            classified.append(verdict)
            return verdict

    host = await world.host(MyAgent)
    agent = host.get(MyAgent, "a")
    limited = await agent.save_messages("Hi")
    too_long = await agent.save_messages("Hi")
    await world.stop()
    assert classified[:2] == ["rate_limit", "context_overflow"]
    assert limited.error == "Something went wrong. Please try again."
    assert "too long" in too_long.error
