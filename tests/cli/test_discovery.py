"""Finding agents in files and folders, and saying what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from outlast.cli.load.discovery import discover
from outlast.cli.load.load import CannotLoad, load
from outlast.cli.models import problems_of

AGENT = """
from outlast import Agent

class {name}(Agent):
    pass
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forgotten_imports: None) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: str, text: str) -> None:
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(dedent(text))


def test_agents_are_found_in_files_and_folders_with_their_sub_agents() -> None:
    write("agents/clerk.py", AGENT.format(name="Clerk"))
    write("agents/email.py", AGENT.format(name="Email"))  # a name of the standard library
    write("agents/support/agent.py", AGENT.format(name="Support"))
    write("agents/support/agents/billing.py", AGENT.format(name="Billing"))
    write("agents/support/agents/law/agent.py", AGENT.format(name="Law"))
    write("agents/support/agents/law/agents/tax.py", AGENT.format(name="Tax"))
    write("agents/support/skills/refund.md", "How to refund")
    write("agents/_draft.py", "raise RuntimeError('not this one')")
    write("agents/.hidden/agent.py", "raise RuntimeError('nor this one')")
    write("agents/data/readme.txt", "nothing")
    found = discover(Path("agents"))
    assert found.problems == []
    assert [each.__name__ for each in found.agents] == ["Clerk", "Email", "Support"]
    support = found.agents[-1]
    billing, law = support.sub_agents
    assert (billing.__name__, law.__name__) == ("Billing", "Law")
    assert [each.__name__ for each in law.sub_agents] == ["Tax"]
    assert set(found.places) == {"Clerk", "Email", "Support", "Billing", "Law", "Tax"}


def test_files_can_import_each_other_and_what_is_imported_is_not_found_twice() -> None:
    write("agents/_shared.py", AGENT.format(name="Base"))
    write("agents/one.py", "from ._shared import Base\nclass One(Base): pass\nAlias = One\n")
    write(
        "agents/two.py",
        "from _shared import Base\nclass _Hidden(Base): pass\nclass Two(Base): pass",
    )
    found = discover(Path("agents"))
    assert found.problems == []
    assert [each.__name__ for each in found.agents] == ["One", "Two"]


def test_an_agent_can_be_declared_without_a_class() -> None:
    declared = """
    from outlast.declare import agent
    anything = agent(model="test:model", prompt="Be kind.", tools=[print], max_steps=3)
    """
    write("agents/support_bot.py", declared)
    write("agents/night_watch/agent.py", declared)
    found = discover(Path("agents"))
    assert found.problems == []
    watch, bot = found.agents
    assert (watch.__name__, bot.__name__) == ("NightWatch", "SupportBot")
    assert (bot.model, bot.system_prompt, bot.max_steps) == ("test:model", "Be kind.", 3)
    assert bot.get_tools(None) == [print]


def test_a_setting_that_there_is_not_is_met_with_the_right_one() -> None:
    from outlast.declare import agent

    with pytest.raises(TypeError, match="no setting 'max_step'; did you mean 'max_steps'"):
        agent(model="x:y", name="A", max_step=3)
    with pytest.raises(ValueError, match="give it a name="):
        agent(model="x:y", name="not a name")


def test_everything_that_is_wrong_is_told_at_once_with_its_place() -> None:
    write("agents/a.py", AGENT.format(name="Clerk"))
    write("agents/b/agent.py", AGENT.format(name="Clerk"))
    write("agents/c.py", "x = 1\ny = x +\n")
    write("agents/d.py", "import os\nimport no_such_package.deep\n")
    write("agents/e.py", "def f():\n    return 1 / 0\n\nf()\n")
    write("agents/f/agent.py", "# none")
    write("agents/f/agents/g.py", AGENT.format(name="Lost"))
    with pytest.raises(CannotLoad) as caught:
        load("agents/", None)
    lines = str(caught.value).splitlines()
    assert lines[1].startswith("  agents/b/agent.py: Clerk is also in agents/a.py; rename one")
    assert lines[2] == "  agents/c.py:2: SyntaxError: invalid syntax"
    assert lines[3] == (
        "  agents/d.py:2: ModuleNotFoundError: No module named 'no_such_package'."
        " Is no_such_package installed?"
    )
    assert lines[4] == "  agents/e.py:2: ZeroDivisionError: division by zero"
    assert lines[5].startswith(
        "  agents/f/agent.py: sub-agents in agents/f/agents need exactly one"
    )
    assert len(lines) == 6


def test_a_folder_without_agents_is_said() -> None:
    write("agents/notes.py", "x = 1")
    with pytest.raises(CannotLoad, match="no agents in agents; put them"):
        load("agents", None)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("assistent.py", "file assistent.py not found; did you mean assistant.py?"),
        ("assistant", "module 'nothing_here' not found"),
        ("nothing_here", "module 'nothing_here' not found; the name of a file must end with .py"),
        ("assistant.py:ap", "has no App named 'ap'. Did you mean 'app'?"),
        ("empty.py", "empty.py contains neither an App nor an agent class"),
        ("empty.py:app", "has no App named 'app'; it contains none"),
    ],
)
def test_a_target_that_is_wrong_is_met_with_the_right_one(target: str, told: str) -> None:
    write(
        "assistant.py", AGENT.format(name="Clerk") + "from outlast import App\napp = App([Clerk])"
    )
    write("empty.py", "")
    if target == "assistant":  # it is importable, since it is here
        assert load(target, None).agents[0].__name__ == "Clerk"
        return
    with pytest.raises(CannotLoad) as caught:
        load(target, None)
    assert told in str(caught.value)


def test_an_explicit_app_needs_none_of_this() -> None:
    write(
        "assistant.py", AGENT.format(name="Clerk") + "from outlast import App\nmine = App([Clerk])"
    )
    assert load("assistant.py", None).agents[0].__name__ == "Clerk"
    assert load("assistant.py:mine", "sqlite:///x.db").store == "sqlite:///x.db"


@pytest.mark.parametrize(
    ("model", "installed", "keys", "told"),
    [
        ("anthropic:claude", False, {}, ["pip install 'outlast[anthropic]'"]),
        ("anthropic:claude", True, {}, ["set ANTHROPIC_API_KEY"]),
        ("anthropic:claude", True, {"ANTHROPIC_API_KEY": "x"}, []),
        ("google:gemini", True, {}, ["set GOOGLE_API_KEY or GEMINI_API_KEY"]),
        ("google:gemini", True, {"GEMINI_API_KEY": "x"}, []),
        ("groq:llama", False, {}, ["pip install 'groq'"]),
        ("antropic:claude", True, {}, ["Did you mean 'anthropic'?"]),
        ("someone-else:model", True, {}, []),
        ("gpt", True, {}, []),
        (None, True, {}, []),
        (object(), True, {}, []),
    ],
)
def test_what_a_model_needs_is_named(
    model: object, installed: bool, keys: dict[str, str], told: list[str]
) -> None:
    problems = problems_of(model, keys, lambda package: installed)
    assert len(problems) == len(told)
    assert all(words in problem for words, problem in zip(told, problems, strict=True))
