"""`outlast chat`: a conversation in the terminal, with tools, approvals, and answers that go on."""

from __future__ import annotations

import contextlib
import queue
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import typer

from outlast.cli.output import fail
from outlast.cli.talk.client import News, Talk
from outlast.inspect.words import arguments, short, value

SHOWN = 6  # messages of the conversation so far
LOOK_EVERY = 0.2  # seconds, at the connection, while an answer is waited for
GO_ON_WITHIN = 30.0  # seconds for the agent to go on after an approval
HELP = "/clear deletes the conversation, /quit or Ctrl-D leaves; Ctrl-C stops an answer."
# What a model says goes to a terminal: nothing of it may steer that.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """A text without the characters that steer terminals.

    ```python
    from outlast.cli.talk.chat import harmless
    assert harmless("red\\x1b[31m\\ttext\\n") == "red[31m\\ttext\\n"
    ```
    """
    return _CONTROL.sub("", text)


@dataclass(slots=True)
class Screen:
    """Writes what is said and done, as it comes."""

    is_terminal: bool = field(default_factory=lambda: sys.stdout.isatty())
    at_start: bool = True  # of a line

    def write(self, text: str) -> None:
        text = harmless(text)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self.at_start = text.endswith("\n")

    def line(self, text: str, **style: Any) -> None:
        """A line of its own."""
        if not self.at_start:
            sys.stdout.write("\n")
        shown = harmless(text)
        sys.stdout.write((typer.style(shown, **style) if self.is_terminal else shown) + "\n")
        sys.stdout.flush()
        self.at_start = True

    def end(self) -> None:
        if not self.at_start:
            sys.stdout.write("\n")
            self.at_start = True


@dataclass(slots=True)
class Answer:
    """An answer that comes, chunk by chunk: what of it is to be shown, and what it asks of the user."""

    screen: Screen
    names: dict[str, tuple[str, Any]] = field(default_factory=dict)  # calls: tool and input
    asked: list[str] = field(default_factory=list)  # calls that wait for an approval
    is_thinking: bool = False

    def take(self, chunk: dict[str, Any]) -> None:
        kind, id = chunk.get("type"), str(chunk.get("toolCallId", ""))
        if kind == "reasoning-delta":
            if not self.is_thinking:
                self.screen.line("(thinking)", dim=True)
            self.is_thinking = True
            return
        self.is_thinking = False
        match kind:
            case "text-start":
                self.screen.end()
            case "text-delta":
                self.screen.write(str(chunk.get("delta", "")))
            case "tool-input-available":
                self.names[id] = str(chunk.get("toolName", "")), chunk.get("input")
                self.screen.line(f"⚙ {self.call(id)}", fg="magenta")
            case "tool-output-available":
                if chunk.get("preliminary") is not True:
                    self.screen.line(f"← {value(chunk.get('output'), 200)}", fg="magenta")
            case "tool-output-error" | "tool-input-error":
                self.screen.line(f"← {short(str(chunk.get('errorText', '')), 200)}", fg="red")
            case "tool-output-denied":
                self.screen.line("← it was not allowed", fg="red")
            case "tool-approval-request":
                self.asked.append(id)
            case "error":
                self.screen.line(str(chunk.get("errorText", "")), fg="red")
            case "abort":
                self.screen.line("(stopped)", dim=True)

    def call(self, id: str) -> str:
        name, given = self.names.get(id, ("a tool", None))
        return f"{name}({arguments(given)})"


class Chat:
    """One conversation."""

    def __init__(self, talk: Talk, screen: Screen) -> None:
        self._talk = talk
        self._screen = screen
        self.failed = False

    def show(self) -> None:
        """The last of what was said so far."""
        for message in self._talk.messages[-SHOWN:]:
            self._show(message)

    def open(self) -> None:
        """Go on with what is under way, or waits for the user."""
        messages = self._talk.messages
        under_way = self._talk.offered(0.3 if messages else 0)
        if under_way is not None:
            self._screen.line("(an answer is under way)", dim=True)
            self._follow(under_way, self._talk.resume(under_way))
        elif messages and messages[-1].get("role") == "assistant":
            answer = Answer(self._screen)
            for part in messages[-1].get("parts", ()):
                if isinstance(part, dict) and part.get("state") == "approval-requested":
                    id = str(part.get("toolCallId"))
                    name = part.get("toolName") or str(part.get("type", "")).removeprefix("tool-")
                    answer.names[id] = str(name), part.get("input")
                    answer.asked.append(id)
            self._go_on(answer)

    def say(self, text: str) -> None:
        """Say something, and show the answer with all that comes of it."""
        id, news = self._talk.say(text)
        self._follow(id, news)

    def _show(self, message: dict[str, Any]) -> None:
        from outlast.chat.message.reducer import text_of

        said = text_of(message)
        if message.get("role") == "user":
            self._screen.line(f"> {said}", bold=True)
        elif said:
            self._screen.line(said)

    def _follow(self, id: str, news: queue.Queue[News]) -> None:
        answer = Answer(self._screen)
        self._watch(id, news, answer)
        self._go_on(answer)

    def _go_on(self, answer: Answer) -> None:
        """With what comes once the user has answered all that was asked of them."""
        while self._ask(answer):
            id = self._talk.offered(GO_ON_WITHIN)
            if id is None:
                return
            answer = Answer(self._screen)
            self._watch(id, self._talk.resume(id), answer)

    def _watch(self, id: str, news: queue.Queue[News], answer: Answer) -> None:
        """Show an answer to its end. Ctrl-C stops it; a second one leaves."""
        stopping = was_away = was_recovering = False
        while True:
            try:
                found = news.get(timeout=LOOK_EVERY)
            except queue.Empty:
                if not self._talk.is_connected and not was_away:
                    was_away = True
                    self._screen.line("(the connection is lost; waiting for the server)", dim=True)
                if self._talk.is_recovering and not was_recovering:
                    was_recovering = True
                    self._screen.line("(interrupted; it goes on)", dim=True)
                continue
            except KeyboardInterrupt:
                if stopping:
                    raise
                stopping = True
                self._talk.cancel(id)
                continue
            if found.chunk is not None:
                answer.take(found.chunk)
            elif found.kind == "failed":
                self._screen.line(found.text, fg="red")
                self.failed = True
                return
            else:
                self._screen.end()
                return

    def _ask(self, answer: Answer) -> bool:
        """Ask the user about calls that wait for it. Whether the agent goes on."""
        for id in answer.asked:
            yes = _yes(f"Allow {harmless(answer.call(id))}?")
            self._talk.approve(id, yes)
        return bool(answer.asked)


def _yes(question: str) -> bool:
    """Only a clear yes is one; so is the end of what is piped in no yes."""
    with contextlib.suppress(EOFError):
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    sys.stdout.write("\n")
    return False


def chat(
    url: str, agent: str, name: str, message: str | None, headers: Mapping[str, str] | None = None
) -> int:
    """Talk until the user leaves. The exit status."""
    from outlast.client import Refused

    headers = headers or {}
    kind = _checked(url, agent, headers)
    screen = Screen()
    try:
        with Talk(url, kind, name, headers) as talk:
            conversation = Chat(talk, screen)
            if message is not None:
                conversation.say(message)
                return 1 if conversation.failed else 0
            is_prompting = sys.stdin.isatty()
            if is_prompting:
                _use_readline()
                screen.line(f"{kind}/{name} at {url}. {HELP}", dim=True)
                conversation.show()
            conversation.open()
            while True:
                try:
                    text = input("> " if is_prompting else "").strip()
                except (EOFError, KeyboardInterrupt):
                    if is_prompting:
                        screen.line("")
                    return 1 if conversation.failed and not is_prompting else 0
                if text in ("/quit", "/exit"):
                    return 0
                if text == "/clear":
                    talk.clear()
                elif text.startswith("/") and " " not in text:
                    screen.line(HELP, dim=True)
                elif text:
                    conversation.say(text)
    except KeyboardInterrupt:
        screen.line("")
        return 130
    except Refused:
        fail(f"the server at {url} has no agent {kind!r}, or does not let you in")
    except TimeoutError:
        fail(f"the server at {url} does not answer")


def _use_readline() -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401


def _checked(url: str, agent: str, headers: Mapping[str, str]) -> str:
    """The agent's class as it stands in URLs; says so if no server is there, or no such agent."""
    import httpx2 as httpx

    from outlast.cli.suggest import match, suggestion
    from outlast.server.routing import kebab

    if urlsplit(url).scheme not in ("http", "https"):
        fail(f"{url!r} is no URL of a server; those look like http://127.0.0.1:8000")
    try:
        answer = httpx.get(f"{url.rstrip('/')}/_outlast/page", headers=dict(headers), timeout=10)
        if answer.status_code == 403:
            fail(f"the server at {url} does not let you in: {answer.json()['error']}")
        agents = answer.json()["agents"] if answer.status_code == 200 else None
        classes = None if agents is None else [each["kind"] for each in agents]
    except httpx.TransportError:
        fail(f"nothing serves at {url}. Start it with `outlast dev`, or say where: --url")
    except (ValueError, KeyError, TypeError):
        classes = None
    if classes is None:  # it has no page: whoever connects is told
        return kebab(agent) if agent != agent.lower() else agent
    found = match(agent, classes)
    if found is None:
        fail(f"there is no agent {agent!r} at {url}{suggestion(agent, classes)}")
    return kebab(found)
