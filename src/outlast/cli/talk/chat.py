"""`outlast chat`: a conversation in the terminal, with tools, approvals, and answers that resume."""

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

SHOWN = 6  # messages shown at the start
LOOK_EVERY = 0.2  # seconds between checks of the connection while waiting for an answer
CONTINUE_WITHIN = 30.0  # seconds for the agent to continue after an approval
HELP = "/clear deletes the conversation, /quit or Ctrl-D exits, Ctrl-C stops an answer."
# The model's output goes to a terminal: it must not contain control characters.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """Return the text without the characters that control terminals.

    ```python
    from outlast.cli.talk.chat import harmless
    assert harmless("red\\x1b[31m\\ttext\\n") == "red[31m\\ttext\\n"
    ```
    """
    return _CONTROL.sub("", text)


@dataclass(slots=True)
class Screen:
    """Writes the conversation as it arrives."""

    is_terminal: bool = field(default_factory=lambda: sys.stdout.isatty())
    at_start: bool = True  # the cursor is at the start of a line

    def write(self, text: str) -> None:
        text = harmless(text)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self.at_start = text.endswith("\n")

    def line(self, text: str, **style: Any) -> None:
        """Write a separate line."""
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
    """An answer as it arrives: what to show of it, and what it asks the user."""

    screen: Screen
    names: dict[str, tuple[str, Any]] = field(default_factory=dict)  # by call: tool and input
    asked: list[str] = field(default_factory=list)  # calls that need an approval
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
                self.screen.line("← denied", fg="red")
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
        """Show the last messages so far."""
        for message in self._talk.messages[-SHOWN:]:
            self._show(message)

    def open(self) -> None:
        """Resume a running answer, or ask for the approvals that are due."""
        messages = self._talk.messages
        under_way = self._talk.offered(0.3 if messages else 0)
        if under_way is not None:
            self._screen.line("(an answer is streaming)", dim=True)
            self._follow(under_way, self._talk.resume(under_way))
        elif messages and messages[-1].get("role") == "assistant":
            answer = Answer(self._screen)
            for part in messages[-1].get("parts", ()):
                if isinstance(part, dict) and part.get("state") == "approval-requested":
                    id = str(part.get("toolCallId"))
                    name = part.get("toolName") or str(part.get("type", "")).removeprefix("tool-")
                    answer.names[id] = str(name), part.get("input")
                    answer.asked.append(id)
            self._continue(answer)

    def say(self, text: str) -> None:
        """Send a message, and show the answer and its continuations."""
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
        self._continue(answer)

    def _continue(self, answer: Answer) -> None:
        """Follow the continuation once the user answered every approval."""
        while self._ask(answer):
            id = self._talk.offered(CONTINUE_WITHIN)
            if id is None:
                return
            answer = Answer(self._screen)
            self._watch(id, self._talk.resume(id), answer)

    def _watch(self, id: str, news: queue.Queue[News], answer: Answer) -> None:
        """Show an answer to its end. Ctrl-C stops it; a second Ctrl-C exits."""
        stopping = was_away = was_recovering = False
        while True:
            try:
                found = news.get(timeout=LOOK_EVERY)
            except queue.Empty:
                if not self._talk.is_connected and not was_away:
                    was_away = True
                    self._screen.line("(connection lost, waiting for the server)", dim=True)
                if self._talk.is_recovering and not was_recovering:
                    was_recovering = True
                    self._screen.line("(interrupted, resuming)", dim=True)
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
        """Ask the user about calls that need an approval. Returns whether the agent continues."""
        for id in answer.asked:
            yes = _yes(f"Allow {harmless(answer.call(id))}?")
            self._talk.approve(id, yes)
        return bool(answer.asked)


def _yes(question: str) -> bool:
    """Ask a yes-no question. Only a clear yes counts; the end of the input does not."""
    with contextlib.suppress(EOFError):
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    sys.stdout.write("\n")
    return False


def chat(
    url: str, agent: str, name: str, message: str | None, headers: Mapping[str, str] | None = None
) -> int:
    """Chat until the user exits. Returns the exit status."""
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
        fail(f"the server at {url} has no agent {kind!r}, or denies access")
    except TimeoutError:
        fail(f"the server at {url} does not respond")


def _use_readline() -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401


def _checked(url: str, agent: str, headers: Mapping[str, str]) -> str:
    """Return the agent's class in the spelling of URLs; fails if there is no server or no such agent."""
    import httpx2 as httpx

    from outlast.cli.suggest import match, suggestion
    from outlast.server.routing import kebab

    if urlsplit(url).scheme not in ("http", "https"):
        fail(f"the URL must look like http://127.0.0.1:8000, got {url!r}")
    try:
        answer = httpx.get(f"{url.rstrip('/')}/_outlast/page", headers=dict(headers), timeout=10)
        if answer.status_code == 403:
            fail(f"the server at {url} denies access: {answer.json()['error']}")
        agents = answer.json()["agents"] if answer.status_code == 200 else None
        classes = None if agents is None else [each["kind"] for each in agents]
    except httpx.TransportError:
        fail(f"no server at {url}. Start one with `outlast dev`, or give its URL with --url")
    except (ValueError, KeyError, TypeError):
        classes = None
    if classes is None:  # the server has no page; connecting reports a wrong name
        return kebab(agent) if agent != agent.lower() else agent
    found = match(agent, classes)
    if found is None:
        fail(f"no agent {agent!r} at {url}{suggestion(agent, classes)}")
    return kebab(found)
