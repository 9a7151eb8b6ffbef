"""What everybody needs: keyboard, names for screen readers, contrast, narrow screens."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Tabs
from browser.seen import answer, answers, card, say, until_idle

RICH = """markdown
# Title
Text with `code`, [a link](https://example.org) and **bold**.

> quoted

1. one
2. two

```python
def f(x: int) -> str:  # comment
    return "text" * 12
```

| a | b |
| --- | --- |
| 1 | 2 |
"""

CONTRAST = """() => {
    const channel = v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const parse = text => (([r, g, b, a = 1]) => [r, g, b, a])(text.match(/[\\d.]+/g).map(Number));
    const over = (top, under) => [0, 1, 2].map(n => top[n] * top[3] + under[n] * (1 - top[3]));
    const background = node => {
        const layers = [];
        for (let at = node; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour[3] > 0) layers.push(colour);
            if (colour[3] === 1) break;
        }
        return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
    };
    const bad = [];
    let count = 0;
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim()) continue;
        if (!node.checkVisibility({ visibilityProperty: true })) continue;
        if (node.closest(".off-screen, .skip, [disabled], noscript, [aria-hidden=true]")) continue;
        const style = getComputedStyle(node), size = parseFloat(style.fontSize);
        const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
        const under = background(node);
        const [one, other] = [luminance(over(parse(style.color), under)), luminance(under)];
        const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        count += 1;
        const text = walker.currentNode.textContent.trim().slice(0, 30);
        if (ratio < (isLarge ? 3 : 4.5)) bad.push([node.className, text, ratio.toFixed(2)]);
    }
    return { bad, count };
}"""

NAMELESS = """() => [...document.querySelectorAll("a, button, input, select, textarea, [tabindex='0']")]
    .filter(node => node.checkVisibility({ visibilityProperty: true }))
    .filter(node => !(node.getAttribute("aria-label") || node.innerText?.trim() || node.labels?.[0]?.innerText
        || node.title || node.tagName === "PRE"))
    .map(node => node.outerHTML)"""

CONTROLS = """() => [...document.querySelectorAll(
        "a[href], button, input, select, textarea, summary, [tabindex='0']"
    )].filter(node => node.checkVisibility({ visibilityProperty: true }) && !node.disabled)"""


def rich(page: Page) -> None:
    """Something of everything."""
    say(page, RICH)
    expect(answer(page)).to_contain_text("quoted")
    until_idle(page)
    say(page, "think and say 5 words")
    until_idle(page)
    say(page, "call server tool")
    expect(card(page)).to_have_attribute("data-state", "done")
    until_idle(page)
    card(page).locator(".tool-head").click()
    say(page, "need approval")
    expect(card(page)).to_have_attribute("data-state", "waiting")
    until_idle(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(tabs: Tabs, scheme: Any, name: str) -> None:
    page = tabs.open(color_scheme=scheme, reduced_motion="reduce")
    assert page.evaluate(CONTRAST)["bad"] == []
    rich(page)
    found = page.evaluate(CONTRAST)
    assert found["bad"] == []
    assert found["count"] > 50
    card(page).get_by_role("button", name="Deny").click()
    until_idle(page)
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    say(page, "fail after 3 words")
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.evaluate(CONTRAST)["bad"] == []


def test_everything_can_be_reached_and_has_a_name(page: Page) -> None:
    rich(page)
    assert page.evaluate(NAMELESS) == []
    wanted = page.evaluate(f"({CONTROLS})().length")
    page.evaluate("document.activeElement.blur(); getSelection().removeAllRanges()")
    page.evaluate(f"window.wanted = new Set(({CONTROLS})())")
    assert wanted > 15
    missing: list[str] = []
    for _ in range(wanted + 20):
        page.keyboard.press("Tab")
        missing = page.evaluate(
            "() => { wanted.delete(document.activeElement); return [...wanted].map(n => n.outerHTML); }"
        )
        if not missing:
            break
    assert missing == []


def test_a_conversation_can_be_had_with_the_keyboard_alone(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    before = page.url
    page.keyboard.press("Enter")
    expect(page.locator("#area")).to_be_focused()
    assert page.url == before  # it is the same conversation
    page.keyboard.type("need approval, please:")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("for both lines")
    page.keyboard.press("Enter")
    expect(page.locator(".message.user .said")).to_have_text(
        "need approval, please:\nfor both lines"
    )
    expect(card(page)).to_have_attribute("data-state", "waiting")
    until_idle(page)
    for _ in range(12):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.innerText") == "Approve":
            break
    page.keyboard.press("Space")
    expect(answer(page)).to_have_text("Deleted /tmp/x.")
    outline = page.evaluate(
        """() => {
            document.querySelector("#new").focus({ focusVisible: true });
            return getComputedStyle(document.activeElement).outlineStyle;
        }"""
    )
    assert outline == "solid"


def test_roles_tell_a_screen_reader_what_is_what(page: Page) -> None:
    say(page, "say 5 words")
    until_idle(page)
    expect(page.get_by_role("main")).to_be_visible()
    expect(page.get_by_role("complementary", name="Conversations")).to_be_visible()
    expect(page.get_by_role("navigation", name="Conversations")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page.get_by_role("article", name="You")).to_have_count(1)
    expect(page.get_by_role("article", name="Answer")).to_have_attribute("aria-busy", "false")
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("The answer is complete")


def test_a_phone_shows_all_of_it(tabs: Tabs) -> None:
    page = tabs.open(viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
    rich(page)
    page.evaluate("document.querySelector('#line .text').textContent = 'a long word '.repeat(20)")
    wide = page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter(node => node.checkVisibility()
            && !node.closest("pre, .table, .off-screen") && node.getBoundingClientRect().right > 361)
            .map(node => node.outerHTML.slice(0, 200))"""
    )
    assert wide == []
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    expect(page.get_by_role("button", name="Kill the server")).to_be_in_viewport()
    expect(page.locator("#area")).to_be_in_viewport()
    sidebar = page.locator("#sidebar")
    expect(sidebar).to_be_hidden()
    page.locator("#menu").tap()
    expect(sidebar).to_be_visible()
    page.get_by_role("button", name="New conversation").tap()
    expect(sidebar).to_be_hidden()
    expect(page.locator("#welcome")).to_be_visible()
    small = page.evaluate(
        """() => [...document.querySelectorAll("button")]
            .filter(node => node.checkVisibility({ visibilityProperty: true }))
            .map(node => [node.id || node.className, node.getBoundingClientRect()])
            .filter(([, box]) => box.width < 24 || box.height < 24).map(([name]) => name)"""
    )
    assert small == []


def test_the_theme_is_kept(page: Page) -> None:
    for theme in ("light", "dark"):
        page.locator("#theme").click()
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()


def test_the_end_stays_in_sight_until_the_reader_scrolls_away(
    page: Page, server: Any, name: str
) -> None:
    say(page, "say 1500 words held after 1200 words")
    expect(answers(page).last).to_contain_text("w1200")
    left = "scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight"
    page.wait_for_function(f"{left} < 5")
    page.locator("#scroller").hover()
    page.mouse.wheel(0, -600)
    expect(page.get_by_role("button", name="Jump to the end")).to_be_visible()
    top = page.evaluate("scroller.scrollTop")
    server.release(name)
    expect(answers(page).last).to_contain_text("w1500")
    assert page.evaluate("scroller.scrollTop") == top
    page.get_by_role("button", name="Jump to the end").click()
    page.wait_for_function(f"{left} < 5")
