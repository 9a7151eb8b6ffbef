"""The React example: built by Vite, served, and looked at in a real browser while its server is killed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples_served import EXAMPLES, LONG, STORY, Served, story, uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from chromium import chromium
from conformance.browser import node

REACT = EXAMPLES / "react"


def npm(*arguments: str) -> None:
    program = node().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = f"{node().parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        [str(node()), str(program), "--loglevel=error", *arguments],
        cwd=REACT,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"npm {arguments[0]} failed:\n{done.stdout}{done.stderr}"


def hash_of(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@pytest.fixture(scope="module")
def dist() -> Path:
    """What `npm ci && npm run build` makes: installed once for each lockfile, built once for each source."""
    lockfile, source = REACT / "package-lock.json", sorted(REACT.joinpath("src").rglob("*.*"))
    with (REACT / ".install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = REACT / "node_modules" / ".outlast-installed"
        if not stamp.exists() or stamp.read_text() != hash_of(lockfile):
            npm("ci", "--ignore-scripts", "--prefer-offline")
            stamp.write_text(hash_of(lockfile))
        settings = [REACT / name for name in ("package.json", "vite.config.js", "index.html")]
        folder = REACT / "node_modules" / ".outlast-built" / hash_of(lockfile, *settings, *source)
        if not (folder / "index.html").exists():
            npm("run", "build", "--", "--outDir", str(folder), "--emptyOutDir")
    return folder


@pytest.fixture(scope="module")
def server(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with uvicorn(folder, "app:web", REACT, DIST=str(dist), PACE="0.01") as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(LONG * 1000)
    yield context.new_page()
    context.close()


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def until_words(page: Page, count: int) -> None:
    page.wait_for_function(
        "count => (document.querySelector('li[data-role=assistant]')?.innerText ?? '')"
        ".split(/\\s+/).length >= count",
        arg=count,
    )


@pytest.mark.parametrize("hook", ["useAgentChat", "sdk"])
def test_the_answer_goes_on_in_the_page_when_the_server_is_killed(
    page: Page, server: Served, hook: str
) -> None:
    page.goto(f"{server.url}/?name=killed-{hook}&{hook}")
    say(page, STORY)
    until_words(page, 60)
    server.kill()
    server.start()
    until_words(page, len(story().split()))
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=LONG * 1000)
    answers = page.locator("li[data-role=assistant]")
    expect(answers).to_have_count(1)
    assert answers.inner_text().split() == story().split()
    page.reload()
    expect(answers).to_have_count(1)
    assert answers.inner_text().split() == story().split(), "a reload shows the same"


@pytest.mark.parametrize("hook", ["useAgentChat", "sdk"])
def test_a_call_is_allowed_in_the_page(page: Page, server: Served, hook: str) -> None:
    page.goto(f"{server.url}/?name=asked-{hook}&{hook}")
    say(page, "Delete my files.")
    page.get_by_role("button", name="Allow").click()
    expect(page.locator(".tool")).to_have_attribute(
        "data-state", "output-available", timeout=LONG * 1000
    )
    expect(page.locator(".tool")).to_contain_text("deleted what was in")
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=LONG * 1000)


def test_a_tool_runs_in_the_page(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/?name=tool")
    say(page, "What time is it in my browser?")
    expect(page.locator(".tool")).to_have_attribute(
        "data-state", "output-available", timeout=LONG * 1000
    )
    expect(page.locator(".tool")).to_contain_text('{"time":')
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=LONG * 1000)
    expect(page.locator("li[data-role=assistant]")).to_have_count(1)
