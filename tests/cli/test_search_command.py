"""`outlast search`: messages of a store, for people and for programs, without a host."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from commands import beside, outlast

from outlast import Host, Session, Think
from outlast.testing import ScriptedModel
from support import hosting


class Talker(Think):
    model = ScriptedModel("Owls [bold]hunt[/bold] at night.", repeat=True)

    def configure_session(self, session: Session) -> Session:
        return session.with_search()


class Plain(Think):
    model = ScriptedModel("Plain owls hunted.", repeat=True)


@pytest.fixture
def talked(sqlite_url: str) -> str:
    """A store with two agents; only the first has an index, the second talked last."""

    async def main() -> None:
        async with Host([Talker, Plain], sqlite_url) as host:
            await host.get(Talker, "alice").save_messages("What do owls do?")
            await host.until_settled()
            await host.get(Plain, "bob").save_messages("And sparrows?")

    asyncio.run(main())
    return sqlite_url


def test_messages_are_shown_under_their_agents(talked: str) -> None:
    ran = outlast("search", "hunting owls", "--store", talked)
    lines = [line.rstrip() for line in ran.out.splitlines() if line.strip()]
    assert ran.code == 0
    assert [line for line in lines if "ago" not in line and "now" not in line] == [
        "Plain/bob",
        "Plain owls hunted.",
        "Talker/alice",
        "Owls [bold]hunt[/bold] at night.",
    ]
    assert lines[1].startswith("assistant, ")


def test_a_terminal_shows_what_was_found_in_colour(
    talked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = outlast("search", "hunting", "--agent", "Plain/bob", "--store", talked)
    assert "Plain owls \x1b[1;33mhunted\x1b[0m." in ran.out
    assert "Plain/bob" not in ran.out, "it was named"


def test_programs_get_the_marks_of_the_best_messages(talked: str) -> None:
    found = outlast("search", "owl", "--agent", "Talker/alice", "--store", talked, "--json").json
    assert {(each["role"], each["text"]) for each in found} == {
        ("user", "What do owls do?"),
        ("assistant", "Owls [bold]hunt[/bold] at night."),
    }
    for each in found:
        ((start, end),) = each["marks"]
        assert each["text"][start:end].lower() == "owls"
        assert each["agent"] == "Talker/alice"
        assert (each["turn"] is None) == (each["role"] == "user")
    assert outlast("search", '"owls do"', "--store", talked, "--json").json[0]["role"] == "user"
    (first,) = outlast("search", "owl", "--limit", "1", "--json", OUTLAST_STORE=talked).json
    assert first["agent"] == "Plain/bob"


def test_what_is_left_out_is_said(talked: str) -> None:
    some = outlast("search", "owl", "--limit", "1", "--store", talked)
    assert "There may be more" in some.out
    assert "There may be more" not in outlast("search", "owl", "--store", talked).out


def test_nothing_found_is_no_error(talked: str) -> None:
    ran = outlast("search", "eagles", "--store", talked)
    assert (ran.code, ran.out.strip()) == (0, "No message matches.")
    assert outlast("search", "eagles", "--store", talked, "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--agent", "Talker/alise"], "Did you mean 'alice'?"),
        (["--agent", "Talkr"], "Did you mean 'Talker'?"),
        (["--agent", "Talker"], "a name is required; known names of Talker: alice"),
    ],
)
def test_a_wrong_name_is_met_with_the_right_one(
    talked: str, arguments: list[str], told: str
) -> None:
    failed = outlast("search", "owl", *arguments, "--store", talked)
    assert failed.code == 1
    assert told in failed.err
    assert failed.err.count("\n") == 1, "one line, no traceback"


def test_a_store_that_does_not_exist_is_not_created(tmp_path: Path) -> None:
    failed = outlast("search", "owl", "--store", f"sqlite:///{tmp_path}/none.db")
    assert (failed.code, "no store at" in failed.err) == (1, True)
    assert os.listdir(tmp_path) == []


async def test_it_works_next_to_a_host_on_both_engines(store_url: str) -> None:
    async with hosting(Talker, url=store_url) as host:
        await host.get(Talker, "alice").save_messages("What do owls do?")
        ran = await beside("search", "night", "--store", store_url, "--json")
        assert [each["role"] for each in ran.json] == ["assistant"]


def test_it_is_a_command_of_the_battery_and_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Search the messages of agents" in outlast("--help").out
    assert outlast("search", "--help").out.startswith("Usage: ")
    assert "QUERY" in outlast("session", "search", "--help").out
    monkeypatch.setattr("outlast.inspect.batteries.OWN", {})
    assert "Search the messages of agents" not in outlast("--help").out
    assert outlast("search", "owl").code == 2
