"""What is on a page, and what a user does there."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect


def words(count: int) -> str:
    return " ".join(f"w{n}" for n in range(1, count + 1))


def say(page: Page, text: str) -> None:
    page.fill("#area", text)
    page.press("#area", "Enter")


def answers(page: Page) -> Locator:
    return page.locator(".message.assistant")


def answer(page: Page) -> Locator:
    """The text of the last answer."""
    return answers(page).last.locator(".markdown")


def until_words(page: Page, count: int) -> None:
    """Until so many words of the last answer are there."""
    page.wait_for_function(
        """count => {
            const all = document.querySelectorAll(".message.assistant .parts");
            return all.length && all[all.length - 1].innerText.split(/\\s+/).length >= count;
        }""",
        arg=count,
        polling=50,
    )


def until_idle(page: Page) -> None:
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("#tail > *")).to_have_count(0)


def card(page: Page) -> Locator:
    """The last call of a tool."""
    return page.locator(".tool").last
