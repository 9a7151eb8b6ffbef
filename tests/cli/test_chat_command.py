"""`outlast chat`: what is shown of an answer, and what the user is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from commands import Ran, outlast
from pydantic_ai.messages import ModelMessage
from tabs import LONG, serving
from typer.testing import CliRunner

from outlast import App, Think, tool
from outlast.cli.main import app
from outlast.testing import ScriptedModel, Step


def answer(messages: list[ModelMessage]) -> Step | str:
    last: Any = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return f"Done: {last.content}"
    if "mail" in str(last.content):
        return Step.text("I will. ") + Step.calls("send", to="a@b.c")
    if "look" in str(last.content):
        return Step.calls("look", where="out")
    if "fail" in str(last.content):
        return Step.fails(RuntimeError("no"))
    return f"You said \x1b[31m{last.content}."


class Mailer(Think):
    model = ScriptedModel.answering(answer)
    max_retries = 0
    sent: list[str] = []

    @tool(effect="once", needs_approval=True)
    async def send(self, to: str) -> str:
        """Send a mail."""
        self.sent.append(to)
        return f"sent to {to}"

    @tool(effect="read")
    async def look(self, where: str) -> str:
        """Look."""
        return f"nothing {where}"

    def on_chat_error(self, error: Exception, context: Any) -> Any:
        return "It did not work."


def talk(url: str, *arguments: str, typed: str = "") -> Ran:
    command = ["chat", *arguments, "--url", url]
    result = CliRunner().invoke(app, command, input=typed)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


async def test_a_conversation_with_tools_and_approvals(sqlite_url: str) -> None:
    Mailer.sent.clear()
    async with serving(App([Mailer], sqlite_url, inspector=True)) as served:
        one = await asyncio.to_thread(talk, served.http, "mailer", "a", "-m", "hello")
        assert (one.code, one.out) == (0, "You said [31mhello.\n"), "nothing steers the terminal"
        looked = await asyncio.to_thread(talk, served.http, "Mailer", "a", "-m", "look")
        assert looked.out.splitlines() == [
            '⚙ look(where="out")',
            '← "nothing out"',
            "Done: nothing out",
        ]
        typed = "mail them\ny\nthanks\n"
        sent = await asyncio.to_thread(talk, served.http, "mailer", "b", typed=typed)
        assert sent.code == 0
        assert 'Allow send(to="a@b.c")? [y/N]' in sent.out
        assert "Done: sent to a@b.c" in sent.out
        assert "You said [31mthanks." in sent.out
        assert Mailer.sent == ["a@b.c"]
        typed = "mail them\nno thanks\n"
        refused = await asyncio.to_thread(talk, served.http, "mailer", "c", typed=typed)
        assert "Done: The user did not allow this call." in refused.out
        assert Mailer.sent == ["a@b.c"], "only a yes is one"


async def test_a_call_that_waits_is_asked_about_when_the_user_comes_back(sqlite_url: str) -> None:
    Mailer.sent.clear()
    application = App([Mailer], sqlite_url)
    async with serving(application) as served:
        await application.host.get(Mailer, "a").save_messages("mail them")
        back = await asyncio.to_thread(talk, served.http, "mailer", "a", typed="y\n")
        assert 'Allow send(to="a@b.c")?' in back.out
        assert "Done: sent to a@b.c" in back.out
        assert Mailer.sent == ["a@b.c"]
        await asyncio.to_thread(
            talk, served.http, "mailer", "a", typed="/clear\n/nonsense\n/quit\n"
        )
        async with asyncio.timeout(LONG):
            while await application.host.get(Mailer, "a").get_messages():
                await asyncio.sleep(0.01)


async def test_what_fails_is_said_and_is_an_exit_status(sqlite_url: str) -> None:
    async with serving(App([Mailer], sqlite_url, inspector=True)) as served:
        failed = await asyncio.to_thread(talk, served.http, "mailer", "a", "-m", "fail")
        assert failed.code == 1
        assert "It did not work." in failed.out
        wrong = await asyncio.to_thread(talk, served.http, "mailr", "a", "-m", "hi")
        assert (wrong.code, "Did you mean 'Mailer'?" in wrong.err) == (1, True)


async def test_a_server_that_is_for_its_own_machine_says_so(sqlite_url: str) -> None:
    async with serving(App([Mailer], sqlite_url)) as served:
        elsewhere = ("-m", "hi", "-H", "x-forwarded-for: 10.0.0.1")
        refused = await asyncio.to_thread(talk, served.http, "mailer", "a", *elsewhere)
        assert (refused.code, "This server has no auth" in refused.err) == (1, True)


async def test_without_an_inspector_the_server_itself_says_that_there_is_no_such_agent(
    sqlite_url: str,
) -> None:
    async with serving(App([Mailer], sqlite_url)) as served:
        assert (await asyncio.to_thread(talk, served.http, "Mailer", "a", "-m", "hi")).code == 0
        wrong = await asyncio.to_thread(talk, served.http, "nobody", "a", "-m", "hi")
        assert (wrong.code, "has no agent 'nobody'" in wrong.err) == (1, True)


async def test_auth_is_passed_on(sqlite_url: str) -> None:
    guarded = App([Mailer], sqlite_url, auth=lambda c: c.headers.get("authorization"))
    async with serving(guarded) as served:
        refused = await asyncio.to_thread(talk, served.http, "mailer", "a", "-m", "hi")
        assert (refused.code, "denies access" in refused.err) == (1, True)
        header = ["-H", "authorization: Bearer x"]
        assert (
            await asyncio.to_thread(talk, served.http, "mailer", "a", "-m", "hi", *header)
        ).code == 0


@pytest.mark.parametrize(
    ("url", "told"),
    [("http://127.0.0.1:9", "no server at"), ("localhost:8000", "the URL must look like")],
)
def test_a_server_that_is_not_there_is_said(url: str, told: str) -> None:
    failed = outlast("chat", "mailer", "a", "--url", url, "-m", "hi")
    assert (failed.code, told in failed.err) == (1, True)
