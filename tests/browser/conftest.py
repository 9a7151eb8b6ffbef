"""A real Chromium, a server for each module, and pages that must have nothing to complain about."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from browser.served import LONG, Server, serving
from chromium import chromium

Opener = Callable[..., Page]
STRANGER = "stranger.example"  # a name that its owner has made to mean this machine

expect.set_options(timeout=LONG * 1000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one file of tests: as long as it is open an event loop runs here, and async tests cannot."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    arguments.append(f"--host-resolver-rules=MAP {STRANGER} 127.0.0.1")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("served")) as started:
        yield started
        for unexpected in ("failed to handle a frame", "Exception in ASGI", "failed (error"):
            assert unexpected not in started.log, started.log


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A conversation for each test."""
    return re.sub(r"\W+", "-", request.node.name).strip("-")


class Tabs:
    """The tabs of one test: one browser profile, unless it asks for another."""

    def __init__(self, browser: Browser, server: Server, name: str) -> None:
        self._browser, self._server, self._name = browser, server, name
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.is_killed = False  # then the network may complain
        self.on_page: Callable[[Page], object] = lambda page: None
        self._contexts: dict[str, BrowserContext] = {}

    def open(
        self,
        *,
        agent: str = "page-agent",
        name: str | None = None,
        profile: str = "",
        waits: bool = True,
        at: str | None = None,
        has_token: bool = True,
        **settings: Any,
    ) -> Page:
        context = self._contexts.get(profile)
        if context is None:
            settings.setdefault("viewport", {"width": 1200, "height": 800})
            settings.setdefault("reduced_motion", "reduce")  # drawing takes most of the time here
            context = self._contexts[profile] = self._browser.new_context(**settings)
        if has_token:
            context.request.get(self._server.link)  # its cookies are those of the pages
        page = context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", lambda request: self.requests.append(request.url))
        self.on_page(page)
        here = f"/?agent={agent}#{self._name if name is None else name}"
        page.goto(f"{self._server.url}{here if at is None else at}")
        if waits:
            page.wait_for_selector("body.is-ready")
            expect(page.locator("#connection")).to_have_attribute("data-state", "open")
        return page

    def _heard(self, message: Any) -> None:
        is_network = "Failed to load resource" in message.text or "WebSocket" in message.text
        if message.type in ("error", "warning") and not (self.is_killed and is_network):
            self.complaints.append(f"{message.type}: {message.text}")

    def close(self) -> None:
        for context in self._contexts.values():
            context.close()
        assert self.complaints == []
        foreign = [
            url
            for url in self.requests
            if not url.startswith((self._server.url, "data:", "blob:", "ws"))
        ]
        assert foreign == []


@pytest.fixture
def tabs(browser: Browser, server: Server, name: str) -> Iterator[Tabs]:
    made = Tabs(browser, server, name)
    yield made
    made.close()


@pytest.fixture
def page(tabs: Tabs) -> Page:
    return tabs.open()
