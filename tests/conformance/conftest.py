"""Processes for pages, a server for each module, and pages that are closed after each test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.browser import Browser, Page, install
from conformance.served import Server, serving

Opener = Callable[..., Page]


@pytest.fixture(scope="session")
def processes() -> Iterator[Browser]:
    install()
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(processes: Browser) -> Iterator[Browser]:
    yield processes
    processes.close_pages()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("served")) as running:
        yield running
        for unexpected in ("failed to handle a frame", "on_message raised", "Exception in ASGI"):
            assert unexpected not in running.log, running.log


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """An agent for each test."""
    return re.sub(r"\W+", "-", request.node.name).strip("-")


@pytest.fixture
def page(browser: Browser, server: Server, name: str) -> Opener:
    """Opens a page of this test's agent."""

    def opened(label: str = "A", **settings: Any) -> Page:
        return browser.open(server.host, name, label, **settings)

    return opened
