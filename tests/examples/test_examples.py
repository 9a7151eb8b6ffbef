"""Every example runs, for real, and does what its first lines say."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from examples_served import EXAMPLES, LONG, STORY, python, serving, story, until, uvicorn

import forked
from outlast.client import Client, Refused


def words(text: str) -> int:
    return len(text.split())


def test_each_example_says_what_it_is_and_how_to_run_it() -> None:
    programs = [*EXAMPLES.glob("*.py"), EXAMPLES / "react" / "app.py"]
    assert len(programs) >= 8
    for program in programs:
        lines = (ast.get_docstring(ast.parse(program.read_text())) or "").splitlines()
        assert lines, program
        is_told = any(
            word in "\n".join(lines) for word in ("python ", "outlast ", "pytest ", "uvicorn ")
        )
        assert is_told, f"{program} does not say how to run it"


def test_the_minimal_agent_is_served_and_its_answer_survives_a_kill(tmp_path: Path) -> None:
    arguments = ["-m", "outlast.cli.main", "serve", str(EXAMPLES / "minimal.py")]
    with serving(tmp_path, *arguments, "--log-level", "warning") as server:

        async def chat() -> str:
            said = ""
            async with Client(server.url, "assistant", "alice") as alice:
                async for chunk in alice.send("Say hello."):
                    said += chunk.get("delta", "")
                    if words(said) == 3:
                        await asyncio.to_thread(server.kill)
                        await asyncio.to_thread(server.start)
            return said

        said = asyncio.run(asyncio.wait_for(chat(), 2 * LONG))
        stored = server.http.get("/agents/assistant/alice/get-messages").json()[-1]
    assert words(said) > 3
    assert "".join(part.get("text", "") for part in stored["parts"]) == said


def test_tools_are_repeated_only_if_they_say_that_it_is_safe(tmp_path: Path) -> None:
    printed = python(str(EXAMPLES / "tools_with_effects.py"), folder=tmp_path)
    lines = {line.split()[0]: line for line in printed.splitlines() if " done " in line}
    assert "done 2x   told: 42" in lines["look_up"]
    assert "done 2x   told: set" in lines["set_price"]
    assert "done 1x   told: The outcome of this call is unknown" in lines["send_mail"]
    assert "done 1x   told: charged" in lines["charge"]


def test_a_fact_that_was_learned_before_a_kill_is_known_after_it(tmp_path: Path) -> None:
    printed = python(str(EXAMPLES / "remembers.py"), folder=tmp_path)
    before, _, after = printed.partition("kill -9, in the middle of the answer")
    assert before.rstrip().endswith("I have written")
    assert after.strip().splitlines() == [
        "I have written that down.",
        "",
        "in its memory: Fact: my favourite birds are owls.",
        "",
        "> What are my favourite birds?",
        "You said: my favourite birds are owls.",
    ]


@pytest.mark.parametrize(("said", "is_paid"), [("y\n", True), ("n\n", False)])
def test_a_question_stays_open_until_somebody_answers(
    tmp_path: Path, said: str, is_paid: bool
) -> None:
    program = str(EXAMPLES / "approval.py")
    assert "the question stays open" in python(program, folder=tmp_path)
    answered = python(program, folder=tmp_path, said=said)
    assert ("paying 120 to ACME" in answered) is is_paid
    assert answered.endswith("That is settled.\n")
    assert python(program, folder=tmp_path) == "That is settled.\n", (
        "nothing is asked, or paid, again"
    )


def test_research_goes_on_after_a_kill(tmp_path: Path) -> None:
    program = (str(EXAMPLES / "research.py"), "owls")
    with (tmp_path / "log").open("w") as log:
        environment = {**os.environ, "PACE": "0.1", "PYTHONUNBUFFERED": "1"}
        first = forked.start(*program, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        until(lambda: "reading source 4" in (tmp_path / "log").read_text(), "the fourth source")
        first.kill()
        first.wait()
    printed = python(*program, folder=tmp_path, PACE="0.01").splitlines()
    assert printed[0].startswith("going on after ")
    assert int(printed[0].split()[3]) >= 3
    assert printed[-1] == "10 notes about owls"
    assert len(printed) <= 2 + 10 - 3, "what was read before the kill is not read again"


def test_fastapi_serves_its_users_and_their_agents(tmp_path: Path) -> None:
    alice = {"authorization": "Bearer alice-token"}
    with uvicorn(tmp_path, "fastapi_app:api", EXAMPLES, PACE="0.005") as server:
        assert server.http.get("/me").status_code == 401
        assert server.http.get("/me", headers=alice).json() == {"user": "alice", "messages": 0}
        assert (
            server.http.get("/agents/assistant/bob/get-messages", headers=alice).status_code == 403
        )

        async def chat() -> str:
            said = ""
            with contextlib.suppress(Refused):
                async with Client(server.url, "assistant", "bob", headers=alice):
                    raise AssertionError("alice was let in to bob's agent")
            async with Client(server.url, "assistant", "alice", headers=alice) as client:
                async for chunk in client.send(STORY):
                    said += chunk.get("delta", "")
                    if words(said) == 50:
                        await asyncio.to_thread(server.kill)
                        await asyncio.to_thread(server.start)
            return said

        assert asyncio.run(asyncio.wait_for(chat(), 2 * LONG)) == story()
        assert server.http.get("/me", headers=alice).json() == {"user": "alice", "messages": 2}

        asked = server.http.post("/ask", params={"question": "Say hello."}, headers=alice).json()
        server.kill()
        server.start()
        place = f"/agents/assistant/alice/submissions/{asked['submission']}"
        until(
            lambda: server.http.get(place, headers=alice).json()["status"] == "completed",
            "what was accepted to be answered",
            lambda: server.log,
        )
