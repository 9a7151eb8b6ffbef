"""What the model is shown of a result in place of what is stored: `@tool(to_model=…)` and `ToolReturn`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import answering, until_running
from interacting import calls, schema
from pydantic import BaseModel
from pydantic_ai import ToolReturn
from pydantic_ai.messages import BinaryContent, ImageUrl, ModelRequest, UserPromptPart
from pydantic_ai.toolsets import FunctionToolset
from tool_calls import call_parts, check_requests, returns

from outlast import Think, TurnConfig, tool
from outlast.agent.battery import Battery
from outlast.chat.context.content import MAX_RESULT_CHARACTERS
from outlast.chat.context.shorten import MAX_OUTPUT_CHARACTERS
from outlast.chat.tools.contribution import Contribution
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.turn import Turn
from outlast.testing import Step
from support import World, forever

pytestmark = pytest.mark.virtual_time

STORED = {"path": "/a.png", "bytes": 3}
PICTURE = BinaryContent(b"png", media_type="image/png")
LINK = ImageUrl("https://example.org/a.png")


class Point(BaseModel):
    x: int


def looking(to_model: Any, *answers: Any, **members: Any) -> type[Any]:
    """An agent with a tool whose results the model is shown in another way."""

    async def look(self: Any) -> dict[str, Any]:
        """Look at a picture."""
        return STORED

    look = tool(effect="read", to_model=to_model)(look)
    model = answering(*(answers or (calls("look"), "Seen.", "Next.")))
    return type("Talker", (Think,), {"model": model, "look": look, **members})


def contents(model: Any, request: int = -1) -> list[Any]:
    check_requests(model)
    return [part.content for part in returns(model, request)]


SHOWN: dict[str, tuple[Any, Any]] = {
    "a text": ("a picture", "a picture"),
    "an empty text": ("", ""),
    "JSON": ({"n": [1, None, 2.5, True]}, {"n": [1, None, 2.5, True]}),
    "nothing": (None, None),
    "a tuple": ((1, "x"), [1, "x"]),
    "a model": (Point(x=1), {"x": 1}),
    "a picture": (PICTURE, PICTURE),
    "a link": (LINK, LINK),
    "a list": (["Look:", PICTURE, LINK, {"n": 1}], ["Look:", PICTURE, LINK, {"n": 1}]),
}


@pytest.mark.parametrize("what", SHOWN)
async def test_the_model_is_shown_what_to_model_returns(world: World, what: str) -> None:
    """In the turn of the call, in later turns, and in later processes; clients see what is stored."""
    made, expected = SHOWN[what]
    given: list[Any] = []

    def shown(output: Any) -> Any:
        given.append(output)
        return made

    Talker = looking(shown)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turn = await a.save_messages("u1")
    assert [part["output"] for part in call_parts(turn.message)] == [STORED]
    assert contents(Talker.model) == [expected]
    await a.save_messages("u2")
    assert contents(Talker.model) == [expected]
    host = await world.next_life()
    await host.get(Talker, "a").save_messages("u3")
    assert contents(Talker.model) == [expected]
    [part] = call_parts((await host.get(Talker, "a").get_messages())[1])
    assert part["output"] == STORED
    await world.stop()
    assert given == [STORED] * 3


def of_output(output: dict[str, Any]) -> str:
    return f"at {output['path']}"


async def of_output_later(output: dict[str, Any]) -> str:
    await asyncio.sleep(1)
    return f"at {output['path']}"


def of_self(self: Any, output: dict[str, Any]) -> str:
    return f"{self.name} at {output['path']}"


@pytest.mark.parametrize(
    ("to_model", "expected"),
    [
        (of_output, "at /a.png"),
        (of_output_later, "at /a.png"),
        (of_self, "a at /a.png"),
        ("of_method", "method of a at /a.png"),
    ],
    ids=["function", "async function", "function of self", "name of a method"],
)
async def test_a_function_or_a_method(sqlite_world: World, to_model: Any, expected: str) -> None:
    async def of_method(self: Any, output: dict[str, Any]) -> str:
        return f"method of {self.name} at {output['path']}"

    Talker = looking(to_model, of_method=of_method)
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await sqlite_world.stop()
    assert contents(Talker.model) == [expected]


async def test_a_tool_of_a_part_names_a_method_of_the_part(sqlite_world: World) -> None:
    """The agent has a method of that name, too: it is not meant."""

    class Pictures(ChatPart):
        async def contribute(self, turn: Turn) -> Contribution:
            return Contribution(source="workspace", tools=[self.look, FunctionToolset([self.see])])

        @tool(effect="read", to_model="shown")
        async def look(self) -> str:
            return "stored"

        @tool(effect="read", to_model="shown")
        async def see(self) -> str:
            return "stored"

        def shown(self, output: str) -> str:
            return f"{output}, shown by the part"

    class HasPictures(Think):
        battery = Battery(name="pictures", part=Pictures)

    class Talker(HasPictures):
        model = answering(calls("look", "see"), "Seen.")

        def shown(self, output: str) -> str:
            return "wrong"

    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await sqlite_world.stop()
    assert contents(Talker.model) == ["stored, shown by the part"] * 2


def fail(output: Any) -> Any:
    raise OSError("the disk is full")


@pytest.mark.parametrize("to_model", [fail, lambda _: object(), "missing"])
async def test_if_it_fails_the_stored_output_is_shown_and_the_error_is_logged(
    sqlite_world: World, to_model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Talker = looking(to_model, calls("look"), calls("look:2"), "Seen.")
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert turn.status == "completed"
    await sqlite_world.stop()
    assert contents(Talker.model) == [STORED] * 2
    told = [each for each in caplog.records if "to_model of tool look" in each.getMessage()]
    assert [each.levelname for each in told] == ["ERROR"] * 2, "once for each call"
    assert all(each.exc_info for each in told)


async def test_it_is_called_once_a_turn(sqlite_world: World) -> None:
    given: list[Any] = []

    def shown(output: Any) -> str:
        given.append(output)
        return f"shown {len(given)}"

    Talker = looking(shown, calls("look"), calls("look:2"), "Seen.", calls("look:3"), "Next.")
    Talker.before_turn = lambda *_: None  # it is shown the conversation, too
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    assert contents(Talker.model) == ["shown 1", "shown 2"]
    await host.get(Talker, "a").save_messages("u2")
    assert contents(Talker.model, -2) == ["shown 3", "shown 4"]
    assert contents(Talker.model) == ["shown 3", "shown 4", "shown 5"]


async def test_older_results_are_cut_and_their_files_are_only_named(sqlite_world: World) -> None:
    long = "x" * (2 * MAX_RESULT_CHARACTERS)
    Talker = looking(lambda _: [PICTURE, LINK, long], calls("look"), "Seen.")
    host = await sqlite_world.host(Talker)
    for n in range(7):
        await host.get(Talker, "a").save_messages(f"u{n}")
    await sqlite_world.stop()
    for request in (1, 2, 6):
        [[picture, link, cut]] = contents(Talker.model, request)
        assert (picture, link, len(cut)) == (PICTURE, LINK, MAX_RESULT_CHARACTERS)
    [old] = contents(Talker.model, 7)
    text = str(old)
    assert "(a file that was shown before: image/png, 3 bytes)" in text
    assert len(text) <= MAX_OUTPUT_CHARACTERS + 100


async def test_a_text_that_is_too_long_is_cut(sqlite_world: World) -> None:
    Talker = looking(lambda _: "x" * (MAX_RESULT_CHARACTERS * 2))
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await sqlite_world.stop()
    [content] = contents(Talker.model)
    assert len(content) == MAX_RESULT_CHARACTERS


async def test_before_turn_sees_what_the_model_is_shown(sqlite_world: World) -> None:
    seen: list[Any] = []

    def before_turn(self: Any, context: Any) -> None:
        for message in context.messages:
            seen.extend(part.content for part in message.parts if part.part_kind == "tool-return")

    Talker = looking(lambda _: PICTURE, before_turn=before_turn)
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await host.get(Talker, "a").save_messages("u2")
    await sqlite_world.stop()
    assert seen == [PICTURE]


async def test_the_tool_that_wins_its_name_says_what_is_shown(sqlite_world: World) -> None:
    """A client's tool has no `to_model`; one that `before_turn` adds has its own."""

    @tool(effect="read", to_model=lambda output: "of before_turn")
    async def look() -> None: ...

    configs: list[Any] = [None, None, TurnConfig(tools=[look])]
    Talker = looking(lambda _: PICTURE, before_turn=lambda *_: configs.pop(0))
    host = await sqlite_world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    await a.save_messages("u2", client_tools=[schema("look")])
    assert contents(Talker.model) == [STORED]
    await a.save_messages("u3", client_tools=[])
    assert contents(Talker.model) == ["of before_turn"]


@pytest.mark.parametrize("is_approved", [False, True])
async def test_in_a_turn_that_goes_on(world: World, is_approved: bool) -> None:
    """After an approval, or after an interruption: earlier results, and those of the calls that were left."""
    ran: list[str] = []

    async def wait(self: Any) -> str:
        ran.append("wait")
        if not is_approved and len(ran) == 1:
            await forever()
        return "waited"

    needs = {"needs_approval": True} if is_approved else {}
    wait = tool(effect="read", to_model=lambda output: f"shown {output}", **needs)(wait)
    Talker = looking(lambda _: PICTURE, calls("look"), calls("wait"), "Done.", wait=wait)
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").submit_messages("u1")
    await asyncio.sleep(1)
    if is_approved:
        await host.get(Talker, "a").add_tool_approval("wait", True)
        await host.until_settled()
    host = await world.next_life()
    await host.until_settled()
    assert (await host.get(Talker, "a").get_messages())[-1].text == "Done."
    await world.stop()
    assert contents(Talker.model) == [PICTURE, "shown waited"]


@pytest.mark.parametrize("wrong", [5, [], object()])
def test_to_model_is_a_function_or_the_name_of_a_method(wrong: Any) -> None:
    with pytest.raises(TypeError, match="to_model must be a function or the name of a method"):
        tool(to_model=wrong)


# --- ToolReturn ----------------------------------------------------------------------------------


def prompts(model: Any, request: int = -1) -> list[Any]:
    """What a model was told as a user would, after the first prompt."""
    return [
        part.content
        for message in model.requests[request].messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]


@pytest.mark.parametrize("content", ["A look.", ["See:", PICTURE]])
async def test_the_content_of_a_tool_return_is_told_in_its_turn(world: World, content: Any) -> None:
    async def look(self: Any) -> ToolReturn:
        """Look."""
        return ToolReturn(STORED, content=content)

    model = answering(calls("look"), Step.call("look", {}, id="look:2"), "Seen.", "Next.")
    Talker = type("Talker", (Think,), {"model": model, "look": tool(effect="read")(look)})
    host = await world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert [part["output"] for part in call_parts(turn.message)] == [STORED] * 2
    assert prompts(model, 1) == ["u1", content]
    assert prompts(model, 2) == ["u1", content, content]
    await host.get(Talker, "a").save_messages("u2")
    assert prompts(model, 3) == ["u1", "u2"], "it is not stored"
    await world.stop()
    check_requests(model)


async def test_the_content_of_a_call_that_was_approved_is_told(world: World) -> None:
    async def look(self: Any) -> ToolReturn:
        """Look."""
        return ToolReturn("stored", content="A look.")

    look = tool(needs_approval=True)(look)
    Talker = type("Talker", (Think,), {"model": answering(calls("look"), "Seen."), "look": look})
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    await a.add_tool_approval("look", True)
    await host.until_settled()
    assert (await a.get_messages())[-1].text == "Seen."
    await world.stop()
    assert prompts(Talker.model) == ["u1", "A look."]
    assert contents(Talker.model) == ["stored"]


@pytest.mark.parametrize("content", [5, {"a": 1}, b"x", [object()], [b"x"]])
async def test_content_that_no_model_takes_is_left_out(
    sqlite_world: World, content: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def look(self: Any) -> ToolReturn:
        """Look."""
        return ToolReturn("stored", content=content)

    members = {"model": answering(calls("look"), "Seen."), "look": tool(effect="read")(look)}
    Talker = type("Talker", (Think,), members)
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    await sqlite_world.stop()
    assert (turn.status, turn.message.text) == ("completed", "Seen.")
    assert prompts(Talker.model) == ["u1"]
    assert contents(Talker.model) == ["stored"]
    assert "a ToolReturn with invalid content" in caplog.text


async def test_content_is_what_a_provider_can_be_sent(sqlite_world: World) -> None:
    long = "x" * (2 * MAX_RESULT_CHARACTERS)

    async def look(self: Any) -> ToolReturn:
        """Look."""
        return ToolReturn("stored", content=[long, PICTURE, "\ud83d!"])

    members = {"model": answering(calls("look"), "Seen."), "look": tool(effect="read")(look)}
    Talker = type("Talker", (Think,), members)
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await sqlite_world.stop()
    [_, [text, picture, half]] = prompts(Talker.model)
    assert (len(text), picture, half) == (MAX_RESULT_CHARACTERS, PICTURE, "\ufffd!")


# --- unlucky functions ---------------------------------------------------------------------------


async def test_it_cannot_change_what_is_stored(world: World) -> None:
    """It is given a copy: what it takes away is taken from the model alone."""

    def shown(output: dict[str, Any]) -> Any:
        del output["bytes"]
        output["path"] = "gone"
        return output

    Talker = looking(shown)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turn = await a.save_messages("u1")
    assert contents(Talker.model) == [{"path": "gone"}]
    assert [part["output"] for part in call_parts(turn.message)] == [STORED]
    await a.save_messages("u2")
    assert [part["output"] for part in call_parts((await a.get_messages())[1])] == [STORED]
    host = await world.next_life()
    [part] = call_parts((await host.get(Talker, "a").get_messages())[1])
    assert part["output"] == STORED
    await world.stop()
    assert STORED == {"path": "/a.png", "bytes": 3}


ODD: dict[str, tuple[Any, Any]] = {
    "half a pair": ("\ud83d!", "\ufffd!"),
    "half a pair inside": ({"a": ["\ud83d"]}, {"a": ["\ufffd"]}),
    "half a pair beside a file": (["\ud83d", PICTURE], ["\ufffd", PICTURE]),
    "not a number": ([float("nan"), float("inf")], [None, None]),
    "bytes": (b"\xff\xfe", "__4="),
    "a set": ({1}, [1]),
    "a generator": ((n for n in range(2)), [0, 1]),
    "number keys": ({1: "a"}, {"1": "a"}),
}


@pytest.mark.parametrize("what", ODD)
async def test_what_it_returns_is_what_a_provider_can_be_sent(
    sqlite_world: World, what: str
) -> None:
    made, expected = ODD[what]
    Talker = looking(lambda _: made, calls("look"), "Seen.")
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert turn.status == "completed"
    await sqlite_world.stop()
    assert contents(Talker.model) == [expected]


@pytest.mark.parametrize(
    "made", [10**5000, "cycle", Ellipsis], ids=["endless number", "cycle", "no JSON"]
)
async def test_what_no_provider_can_be_sent_is_not_shown(
    sqlite_world: World, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if made == "cycle":
        made = []
        made.append(made)
    Talker = looking(lambda _: made, calls("look"), "Seen.")
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert turn.status == "completed"
    await sqlite_world.stop()
    assert contents(Talker.model) == [STORED]
    assert "to_model of tool look raised" in caplog.text


async def test_texts_beside_files_are_cut_wherever_they_stand(sqlite_world: World) -> None:
    long = "x" * (2 * MAX_RESULT_CHARACTERS)
    Talker = looking(lambda _: {"picture": PICTURE, "more": {"text": long, "all": [LINK, long]}})
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await sqlite_world.stop()
    [content] = contents(Talker.model)
    assert (content["picture"], content["more"]["all"][0]) == (PICTURE, LINK)
    assert len(content["more"]["text"]) == len(content["more"]["all"][1]) == MAX_RESULT_CHARACTERS


@pytest.mark.parametrize(
    ("function", "expected"), [(str, str(STORED)), (len, 2), (sorted, ["bytes", "path"])]
)
async def test_functions_of_python_itself(
    sqlite_world: World, function: Any, expected: Any
) -> None:
    """Not all of them say what they take."""
    Talker = looking(function)
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await sqlite_world.stop()
    assert contents(Talker.model) == [expected]


async def test_it_is_stopped_with_its_turn(world: World) -> None:
    Talker = looking(forever)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turn = asyncio.create_task(a.save_messages("u1"))
    await asyncio.sleep(1)
    await a.cancel_chat((await until_running(host, Talker)).request_id)
    async with asyncio.timeout(5):
        ended = await turn
    assert ended.status == "aborted"
    assert [part["output"] for part in call_parts(ended.message)] == [STORED]


@pytest.mark.parametrize("wrong", [5, None, []])
def test_needs_approval_is_a_bool_or_a_function(wrong: Any) -> None:
    with pytest.raises(
        TypeError, match="needs_approval must be a bool, a function or the name of a"
    ):
        tool(needs_approval=wrong)
