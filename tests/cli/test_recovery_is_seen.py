"""A recovery is a line in the log, and a row in `outlast incidents list`: also when its process is gone."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from commands import beside

from cli.serving.test_supervisor import LONG, supervised, until
from outlast import ChatRecovery, Think
from outlast.client import Client
from outlast.inspect.views import ended_as
from outlast.testing import ScriptedModel, Step
from support import hosting

APP = """
from outlast import App, Think
from outlast.testing import ScriptedModel, Step

ANSWER = " ".join(f"word-{n}" for n in range(40))

def tell(messages):
    parts = [part for message in messages for part in message.parts if part.part_kind == "text"]
    told = "".join(str(part.content) for part in parts)
    return Step.text(ANSWER[len(told):]) if told else Step.text(ANSWER[:49]) + Step.stalls()

class Teller(Think):
    model = ScriptedModel.answering(tell)

app = App(agents=[Teller], store="sqlite:///store.db")
"""
LINE = re.compile(
    r"INFO: +Teller/a: recovered turn r1 \(cause: crashed, attempt: 1\):"
    r" the answer continued after (\d+) ms"
)


async def test_a_killed_worker_is_a_line_at_info_and_a_recovered_incident(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with supervised(tmp_path, app=APP) as server:
        (worker,) = server.children()
        said = []
        async with Client(f"http://127.0.0.1:{server.port}", "teller", "a") as client:
            async with asyncio.timeout(LONG):
                async for chunk in client.send("Well?", request_id="r1"):
                    said.append(chunk.get("delta", ""))
                    if len([each for each in said if each]) == 3:
                        os.kill(worker, signal.SIGKILL)
        assert "".join(said).split() == [f"word-{n}" for n in range(40)]
        until(lambda: LINE.search(server.log) is not None)
        found = LINE.search(server.log)
        assert found is not None
        waited = int(found[1])
        assert 0 < waited < LONG * 1000
        listed = (await beside("incidents", "list", "--store", store, "--json")).json
        assert server.end(signal.SIGTERM) == 0
    for command in (["incidents", "list"], ["inspect", "incidents"]):
        (row,) = (await beside(*command, "--store", store, "--json")).json
        assert [row] == listed, "also when nobody runs it any more"
        assert (row["turn"], row["agent"], row["state"]) == ("r1", "Teller/a", "recovered")
        assert (row["cause"], row["attempts"], row["continuedMs"]) == ("crashed", 1, waited)
        assert row["endedAt"] >= row["firstSeenAt"] > 0
    table = (await beside("incidents", "list", "--store", store)).out
    assert re.search(r"r1 +Teller/a +recovered +crashed +1 ", table), table
    opened = await beside("incidents", "list", "--open", "--store", store)
    assert "No incidents" in opened.out


class Silent(Think):
    """Its model never says anything."""

    model = ScriptedModel(Step.stalls(), repeat=True, by="request")
    chat_stream_stall_timeout = 0.05
    chat_recovery = ChatRecovery(
        max_attempts=1, terminal_message="Sorry.", no_progress_timeout=0.01
    )


async def test_what_is_given_up_is_a_warning_and_stays_listed(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "outlast.chat")
    async with hosting(Silent, url=store_url) as host:
        turn = await host.get(Silent, "a").save_messages("Hi")
        assert turn.status == "error"
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith(f"Silent/a: gave up turn {turn.request_id} ")
    ]
    assert len(lines) == 1, caplog.text
    assert "(cause: stalled, attempt: " in lines[0]
    (row,) = (await beside("incidents", "list", "--store", store_url, "--json")).json
    assert (row["state"], row["cause"], row["continuedMs"]) == ("exhausted", "stalled", None)
    assert "given up" in (await beside("incidents", "list", "--store", store_url)).out


async def test_a_model_that_fell_silent_is_listed_with_the_wait(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Pausing(Think):
        """Its model falls silent once, in the middle."""

        model = ScriptedModel(Step.text("one ") + Step.stalls(), "two", by="request")
        chat_stream_stall_timeout = 0.05

    caplog.set_level("INFO", "outlast.chat")
    async with hosting(Pausing, url=store_url) as host:
        turn = await host.get(Pausing, "a").save_messages("Hi")
        assert turn.message is not None
        assert turn.message.text == "one two"
    begins = f"Pausing/a: recovered turn {turn.request_id} (cause: stalled, attempt: 1): "
    assert len([each for each in caplog.messages if each.startswith(begins)]) == 1
    (row,) = (await beside("incidents", "list", "--store", store_url, "--json")).json
    assert (row["state"], row["cause"], row["attempts"]) == ("recovered", "stalled", 1)
    assert row["continuedMs"] >= 0
    (again,) = (
        await beside("incidents", "list", "Pausing", "a", "--store", store_url, "--json")
    ).json
    assert again == row


@pytest.mark.parametrize(
    ("action", "outcome", "state"),
    [
        ("continue", "completed", "recovered"),
        ("retry", "completed", "recovered"),
        ("finalise", "completed", "recovered"),
        ("splice", "skipped", "recovered"),
        ("continue", "aborted", "recovered"),
        ("continue", "error", "exhausted"),
        ("seal", "error", "exhausted"),
        ("stop", "interrupted", "exhausted"),
    ],
)
def test_how_an_interruption_has_ended(action: str, outcome: str, state: str) -> None:
    assert ended_as(action, outcome) == state


SHOWN = """
import logging, sys
from outlast.cli.serving.worker import show_log
{before}
show_log({level!r})
logging.getLogger("outlast.chat").info("a recovery")
logging.getLogger("outlast.chat").error("a failure")
"""


@pytest.mark.parametrize(
    ("level", "before", "expected"),
    [
        ("info", "", ["INFO:     a recovery", "ERROR:    a failure"]),
        ("warning", "", ["ERROR:    a failure"]),
        ("info", "logging.basicConfig(format='mine %(message)s')", ["mine a failure"]),
    ],
)
async def test_the_log_is_shown_unless_the_application_has_its_own(
    level: str, before: str, expected: list[str]
) -> None:
    source = SHOWN.format(before=before, level=level)
    ran = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, stderr=asyncio.subprocess.PIPE
    )
    _, said = await ran.communicate()
    assert said.decode().splitlines() == expected
