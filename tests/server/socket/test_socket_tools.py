"""Tools over sockets: the server's, the client's, and those that somebody has to approve."""

from __future__ import annotations

import pytest
from tabs import (
    MESSAGES,
    RESPONSE,
    UPDATED,
    Frame,
    Tab,
    before,
    last_messages,
    seqs,
    served,
    stored,
    text_of,
    tool_parts,
)


async def test_a_tool_of_the_server_runs_in_the_turn(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner:
        await owner.answered("r1", "call server tool")
        assert owner.text("r1") == "Weather in Paris is 21C."
        (part,) = tool_parts(last_messages(owner)[1])
        assert (part["state"], part["output"]) == (
            "output-available",
            {"city": "Paris", "tempC": 21},
        )


async def until_continued(tab: Tab, but: str) -> Frame:
    def found() -> Frame | None:
        ends = [each for each in tab.all(RESPONSE, done=True) if each["id"] != but]
        return ends[0] if ends else None

    frame: Frame = await tab.until(found)
    return frame


async def test_a_tool_of_the_client_is_answered_and_the_message_goes_on(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab(pk="o") as owner, server.tab() as other:
        await owner.answered("r1", "call client tool")
        (part,) = tool_parts(last_messages(owner)[1])
        assert part["state"] == "input-available"
        await owner.send(
            "cf_agent_tool_result",
            toolCallId=part["toolCallId"],
            toolName="getUserTimezone",
            output="CET",
            autoContinue=True,
        )
        await owner.send("cf_agent_stream_resume_request", probeId="p")
        updated = await other.wait(UPDATED)
        assert tool_parts(updated["message"])[0]["output"] == "CET"
        await owner.wait(UPDATED)
        offer = await owner.until(
            lambda: next(
                (
                    each
                    for each in owner.frames
                    if each["type"] in ("cf_agent_stream_resuming", "cf_agent_stream_pending")
                ),
                None,
            )
        )
        resuming = await owner.wait("cf_agent_stream_resuming")
        assert resuming["id"] == offer["id"]
        await owner.send("cf_agent_stream_resume_ack", id=resuming["id"])
        for tab in (owner, other):
            done = await until_continued(tab, "r1")
            id = done["id"]
            await tab.until(lambda tab=tab, id=id: tab.text(id) == "Your timezone is CET.")
            assert all(each["continuation"] is True for each in tab.all(RESPONSE, id=id))
            assert "messageId" not in tab.chunks(id)[0]
            found = last_messages(tab)
            assert len(found) == 2
            assert text_of(found[1]) == "Your timezone is CET."
            assert tool_parts(found[1])[0]["state"] == "output-available"
            assert before(tab, tab.all(MESSAGES)[-1], done)
            assert seqs(tab, id) == [*range(len(seqs(tab, id)))]


async def test_two_tools_of_the_client_make_one_continuation(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab(pk="o") as owner, server.tab() as other:
        await owner.answered("r1", "call two client tools")
        parts = tool_parts(last_messages(owner)[1])
        for tab, part, output in zip((owner, other), parts, ("CET", "de"), strict=True):
            await tab.send(
                "cf_agent_tool_result",
                toolCallId=part["toolCallId"],
                toolName="",
                output=output,
                autoContinue=True,
            )
        done = await until_continued(owner, "r1")
        await owner.call("echo")
        ends = {each["id"] for each in owner.all(RESPONSE, done=True)}
        assert ends == {"r1", done["id"]}
        assert text_of(last_messages(owner)[1]) == "Timezone CET and locale de."
        assert (await owner.call("getStats"))["model"] == 2


async def test_the_first_answer_counts(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner, server.tab() as other:
        await owner.answered("r1", "call client tool")
        await other.done("r1")
        (part,) = tool_parts(last_messages(owner)[1])
        for tab, output in ((owner, "CET"), (other, "PST"), (owner, "CET")):
            await tab.send(
                "cf_agent_tool_result",
                toolCallId=part["toolCallId"],
                toolName="getUserTimezone",
                output=output,
                autoContinue=False,
            )
            await tab.wait(UPDATED)
        await owner.send("cf_agent_tool_result", toolCallId="nobody", output=1, autoContinue=True)
        await owner.call("echo")
        await other.call("echo")
        assert len(owner.all(UPDATED)) == len(other.all(UPDATED)) == 1
        assert tool_parts((await stored(server))[1])[0]["output"] == "CET"


async def test_a_tool_of_the_client_can_fail(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner:
        await owner.answered("r1", "call client tool")
        (part,) = tool_parts(last_messages(owner)[1])
        await owner.send(
            "cf_agent_tool_result",
            toolCallId=part["toolCallId"],
            toolName="getUserTimezone",
            state="output-error",
            errorText="no permission",
            autoContinue=False,
        )
        found = tool_parts((await owner.wait(UPDATED))["message"])[0]
        assert (found["state"], found["errorText"]) == ("output-error", "no permission")


async def test_tools_that_only_the_client_knows_are_offered_and_remembered(sqlite_url: str) -> None:
    tools = [{"name": "pickColor", "description": "x", "parameters": {"type": "object"}}]
    async with served(url=sqlite_url) as server, server.tab() as owner:
        await owner.say("r1", "call registered tool", clientTools=tools)
        await owner.done("r1")
        (part,) = tool_parts(last_messages(owner)[1])
        assert (part["type"], part["input"]) == ("tool-pickColor", {"hint": "any"})
        await owner.send(
            "cf_agent_tool_result",
            toolCallId=part["toolCallId"],
            toolName="pickColor",
            output="red",
            autoContinue=True,
        )
        await until_continued(owner, "r1")
        assert text_of(last_messages(owner)[1]) == "You picked red."


@pytest.mark.parametrize("approved", [True, False])
async def test_a_call_is_approved_or_not(sqlite_url: str, approved: bool) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner, server.tab() as other:
        await owner.answered("r1", "need approval")
        (part,) = tool_parts(last_messages(owner)[1])
        assert part["state"] == "approval-requested"
        kinds = [each["type"] for each in owner.chunks("r1")]
        assert kinds.index("tool-approval-request") > kinds.index("tool-input-available")
        for _ in range(2):
            await owner.send(
                "cf_agent_tool_approval",
                toolCallId=part["toolCallId"],
                approved=approved,
                autoContinue=True,
            )
        updated = tool_parts((await other.wait(UPDATED))["message"])[0]
        assert updated["state"] == ("approval-responded" if approved else "output-denied")
        assert updated["approval"]["id"] == part["approval"]["id"]
        done = await until_continued(other, "r1")
        assert done["continuation"] is True
        found = last_messages(other)
        text = "Deleted /tmp/x." if approved else "Okay, I will not delete it."
        assert (len(found), text_of(found[1])) == (2, text)
        kinds = [each["type"] for each in other.chunks(done["id"])]
        assert ("tool-output-available" in kinds) is approved
        assert (await owner.call("getStats")).get("deleteFile", 0) == int(approved)
