"""Talking: sending, streaming, several tabs, reloads, stopping, other answers, search, files."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Tabs
from browser.seen import answer, answers, say, until_idle, until_words, words
from browser.served import Server
from outlast.chat.message.reducer import MessageBuilder

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_a_message_is_sent_and_its_answer_streams(page: Page, server: Server, name: str) -> None:
    expect(page.locator("#welcome")).to_be_visible()
    say(page, "say 40 words held after 10 words")
    expect(page.locator(".message.user")).to_have_text("say 40 words held after 10 words")
    until_words(page, 10)
    expect(answer(page)).to_have_text(words(10))  # no more has been said, and all of it is shown
    expect(page.locator("#stop")).to_be_visible()
    server.release(name)
    expect(answer(page)).to_have_text(words(40))
    until_idle(page)
    expect(page.locator("#announcer")).to_have_text("The answer is complete")
    expect(page.locator("#title")).to_have_text("say 40 words held after 10 words")
    here = page.locator(".conversation[aria-current=page]")
    expect(here).to_have_text("say 40 words held after 10 words")


def test_a_suggestion_is_sent_with_one_click(page: Page) -> None:
    page.get_by_role("button", name="Greet").click()
    expect(answer(page)).to_have_text("You said: Hello!")


def test_two_tabs_show_the_same_while_it_is_being_said(
    tabs: Tabs, server: Server, name: str
) -> None:
    one, other = tabs.open(), tabs.open(profile="another window")
    say(one, "say 30 words held after 12 words")
    until_words(one, 12)
    until_words(other, 12)
    expect(other.locator(".message.user")).to_have_count(1)
    server.release(name)
    for page in (one, other):
        expect(answer(page)).to_have_text(words(30))
        until_idle(page)
        expect(page.locator(".message")).to_have_count(2)
    say(other, "And now?")
    expect(answer(one)).to_have_text("You said: And now?")


def test_tabs_share_the_list_of_conversations(tabs: Tabs) -> None:
    one, other = tabs.open(name="first-of-two"), tabs.open(name="second-of-two")
    say(one, "Only here")
    expect(other.locator(".conversation", has_text="Only here")).to_be_visible()


def test_a_reload_in_the_middle_loses_and_repeats_nothing(
    page: Page, server: Server, name: str
) -> None:
    say(page, "First, be brief.")
    expect(answer(page)).to_have_text("You said: First, be brief.")
    until_idle(page)
    say(page, "say 60 words held after 25 words")
    until_words(page, 25)
    page.reload()
    until_words(page, 25)
    expect(page.locator(".message")).to_have_count(4)
    expect(answer(page)).to_have_text(words(25))
    server.release(name)
    expect(answer(page)).to_have_text(words(60))
    until_idle(page)
    expect(page.locator(".message")).to_have_count(4)


def test_stop_keeps_what_was_said(page: Page, server: Server, name: str) -> None:
    say(page, "say 500 words held after 15 words")
    until_words(page, 15)
    page.get_by_role("button", name="Stop").click()
    until_idle(page)
    expect(answer(page)).to_have_text(words(15))
    stored = server.messages(name)[-1]
    assert "".join(part.get("text", "") for part in stored["parts"]).split() == words(15).split()


def test_escape_stops_too(page: Page) -> None:
    say(page, "say 500 words held after 5 words")
    until_words(page, 5)
    page.keyboard.press("Escape")
    until_idle(page)
    expect(answer(page)).to_have_text(words(5))


def test_another_answer_is_a_branch_that_can_be_paged_to(tabs: Tabs) -> None:
    page, other = tabs.open(), tabs.open(profile="another window")
    say(page, "Say it.")
    expect(answer(page)).to_have_text("You said: Say it.")
    until_idle(page)
    first = answers(page).last.get_attribute("id")
    page.get_by_role("button", name="Another answer").click()
    expect(page.locator(".pager")).to_have_text("2 / 2")
    second = answers(page).last.get_attribute("id")
    assert first != second
    page.get_by_role("button", name="Previous answer").click()
    for each in (page, other):  # other tabs follow
        expect(each.locator(f"#{first}")).to_be_visible()
        expect(each.locator(".message")).to_have_count(2)
    expect(page.locator(".pager")).to_have_text("1 / 2")
    page.get_by_role("button", name="Next answer").click()
    expect(page.locator(f"#{second}")).to_be_visible()


def test_an_edited_message_is_answered_anew(page: Page, server: Server, name: str) -> None:
    say(page, "Speling.")
    expect(answer(page)).to_have_text("You said: Speling.")
    until_idle(page)
    page.locator(".message.user").hover()
    page.get_by_role("button", name="Edit and send again").click()
    page.get_by_label("Your message").fill("Spelling.")
    page.get_by_role("button", name="Send again").click()
    expect(answer(page)).to_have_text("You said: Spelling.")
    until_idle(page)
    expect(page.locator(".message.user")).to_have_text("Spelling.")
    expect(page.locator(".message")).to_have_count(2)
    assert [each["role"] for each in server.messages(name)] == ["user", "assistant"]


def test_search_finds_what_was_said_here_and_elsewhere(tabs: Tabs) -> None:
    page = tabs.open(name="about-owls")
    say(page, "Owls are silent.")
    expect(answer(page)).to_have_text("You said: Owls are silent.")
    until_idle(page)
    other = tabs.open(name="about-herons", profile="of somebody else")
    say(other, "Herons are patient.")
    until_idle(other)
    other.keyboard.press("Control+k")
    other.keyboard.type("silent")
    hits = other.locator(".conversation", has=other.locator(".excerpt"))
    expect(hits).to_have_count(2)
    hits.first.click()
    expect(other.locator(".message.is-found, .message:focus")).to_have_count(1)
    expect(other.locator("#title")).to_have_text("Owls are silent.")
    other.fill("#search", "no such thing")
    expect(other.locator("#conversations")).to_have_text("No results for “no such thing”.")


def test_a_cleared_conversation_is_gone_in_every_tab(tabs: Tabs, server: Server, name: str) -> None:
    page, other = tabs.open(), tabs.open(profile="another window")
    say(page, "Forget this.")
    expect(answer(other)).to_have_text("You said: Forget this.")
    until_idle(page)
    page.get_by_role("button", name="Delete this conversation").click()
    page.get_by_role("button", name="Keep it").click()
    expect(page.locator(".message")).to_have_count(2)
    page.get_by_role("button", name="Delete this conversation").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    for each in (page, other):
        expect(each.locator(".message")).to_have_count(0)
        expect(each.locator("#welcome")).to_be_visible()
    assert server.messages(name) == []


def test_files_and_images_are_sent_along(page: Page, server: Server, name: str) -> None:
    page.set_input_files(
        "#picker",
        [
            {"name": "dot.png", "mimeType": "image/png", "buffer": PIXEL},
            {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"},
            {"name": "huge.bin", "mimeType": "application/x-huge", "buffer": b"x" * 2_000_000},
        ],
    )
    expect(page.locator("#shelf li")).to_have_count(2)
    expect(page.get_by_role("alert")).to_contain_text("huge.bin is too large")
    page.get_by_role("button", name="Remove notes.txt").click()
    say(page, "See?")
    image = page.locator(".message.user img")
    expect(image).to_have_attribute("alt", "dot.png")
    assert image.evaluate("image => image.complete && image.naturalWidth") == 1
    until_idle(page)
    parts = server.messages(name)[0]["parts"]
    assert [part["type"] for part in parts] == ["file", "text"]
    assert base64.b64decode(parts[0]["url"].partition(",")[2]) == PIXEL


def test_a_failed_answer_says_so_and_can_be_tried_again(page: Page) -> None:
    say(page, "fail after 3 words")
    failed = page.get_by_role("alert")
    expect(failed).to_contain_text("fixture model exploded")
    page.reload()
    expect(failed).to_contain_text("fixture model exploded")
    page.get_by_role("button", name="Try again").click()
    expect(failed).to_contain_text("fixture model exploded")


def test_reasoning_is_shown_while_it_comes_and_folded_away_then(page: Page) -> None:
    say(page, "think and say 5 words")
    expect(answers(page).last.locator(".parts > .markdown")).to_have_text(words(5))
    thoughts = page.locator("details.reasoning")
    expect(thoughts).not_to_have_attribute("open", "")
    thoughts.locator("summary").click()
    expect(thoughts.locator(".markdown")).to_have_text("Let me think.")


HTML = {
    "# Title\ntext": "<h3>Title</h3><p>text</p>",
    "## About C# #\n### #": "<h4>About C#</h4><h5></h5>",
    "a *b* **c** ~~d~~ `e`": "<p>a <em>b</em> <strong>c</strong> <del>d</del> <code>e</code></p>",
    "snake_case_name and __init__": "<p>snake_case_name and <strong>init</strong></p>",
    "- a\n- b\n  - c": "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>",
    "3. x\n4. y": '<ol start="3"><li>x</li><li>y</li></ol>',
    "> q\n> r": "<blockquote><p>q\nr</p></blockquote>",
    "<b>x</b> & y": "<p>&lt;b&gt;x&lt;/b&gt; &amp; y</p>",
    "[x](javascript:1)": "<p>x</p>",
    "[x](/relative)": "<p>x</p>",
    "[w](https://a.example/x_(y)) **a\nb**": (
        '<p><a href="https://a.example/x_(y)">w</a> <strong>a\nb</strong></p>'
    ),
    "see https://a.example/b.": '<p>see <a href="https://a.example/b">https://a.example/b</a>.</p>',
    "| a | b |\n| - | -: |\n| 1 | 2 |": (
        "<table><thead><tr><th>a</th><th>b</th></tr></thead>"
        "<tbody><tr><td>1</td><td>2</td></tr></tbody></table>"
    ),
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
}


def test_markdown_becomes_these_nodes(page: Page) -> None:
    made = page.evaluate(
        """async texts => {
            const { Markdown } = await import("/_outlast/ui/markdown.js");
            return texts.map(text => {
                const made = new Markdown();
                made.show(text);
                return made.node.innerHTML;
            });
        }""",
        [*HTML],
    )
    plain = [
        re.sub(r' (?:class|target|rel|scope|tabindex|role|aria-label)="[^"]*"', "", each)
        for each in made
    ]
    shown = [re.sub(r"^<div>(<table>.*</table>)</div>$", r"\1", each) for each in plain]
    assert dict(zip(HTML, shown, strict=True)) == HTML


def test_no_text_takes_long_to_look_through(page: Page) -> None:
    hostile = [
        "[",
        "*a",
        "**a ",
        "_a ",
        "`a``b```c",
        "[a](",
        "[[a]",
        "![",
        "![a](x",
        "~~a ",
        "*_`[",
    ]
    texts = [(each * 20000)[:19000] for each in [*hostile, " ", "> ", "- ", "| ", "https://a"]]
    texts.append(" ".join("`" * n for n in range(1, 190)))
    texts += ["# a" + " " * 19000, "# " + "#" * 19000, "|" + "-" * 19000, "a|\n" + "-|" * 9000]
    took = page.evaluate(
        """async texts => {
            const { Markdown } = await import("/_outlast/ui/markdown.js");
            return texts.map(text => {
                const since = performance.now();
                new Markdown().show(text + "x");
                return [text.slice(0, 9), performance.now() - since];
            });
        }""",
        texts,
    )
    assert [each for each in took if each[1] > 3000] == []  # milliseconds, on a busy machine


def test_markdown_that_grows_ends_as_if_it_had_come_at_once(page: Page) -> None:
    text = (Path(__file__).parents[2] / "src/outlast/demo/said/code.md").read_text()
    grown, whole = page.evaluate(
        """async text => {
            const { Markdown } = await import("/_outlast/ui/markdown.js");
            const grown = new Markdown(), whole = new Markdown();
            for (let at = 0; at < text.length; at += 3) grown.show(text.slice(0, at));
            grown.show(text);
            whole.show(text);
            return [grown.node.innerHTML, whole.node.innerHTML];
        }""",
        text,
    )
    assert grown == whole


@pytest.mark.parametrize("prompt", ["hostile"])
def test_a_hostile_answer_is_text(tabs: Tabs, prompt: str) -> None:
    page = tabs.open()
    say(page, prompt)
    until_idle(page)
    expect(answer(page)).to_contain_text("<script>window.hacked = 1</script>")
    assert page.evaluate("window.hacked") is None
    inside = answers(page).last
    for tag in ("script", "iframe", "style", "img", "object", "embed", "form"):
        expect(inside.locator(f".markdown {tag}")).to_have_count(0)
    links = inside.locator(".markdown a").evaluate_all("links => links.map(a => a.href)")
    assert sorted(links) == [
        "https://example.org/bare",
        "https://example.org/page",
        "https://tracker.invalid/pixel.png",
    ]
    relations = inside.locator(".markdown a").evaluate_all("links => links.map(a => a.rel)")
    assert set(relations) == {"noopener noreferrer nofollow"}
    assert not [url for url in tabs.requests if "tracker" in url]


def test_a_megabyte_in_one_line_does_not_stop_the_page(page: Page) -> None:
    say(page, "megabyte")
    until_idle(page)
    expect(answer(page)).to_contain_text("begin xxx")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Show all").click()
    expect(answer(page)).to_contain_text("xxx end")
    say(page, "Still there?")
    expect(answer(page)).to_have_text("You said: Still there?")


# --- the reducer, beside the server's own ---------------------------------------------------------

CALL = {"toolCallId": "c", "toolName": "look"}
STREAMS: dict[str, list[dict[str, Any]]] = {
    "a text": [
        {"type": "start", "messageId": "m"},
        {"type": "start-step"},
        {"type": "text-start", "id": "t"},
        {"type": "text-delta", "id": "t", "delta": "Hel"},
        {"type": "text-delta", "id": "t", "delta": "lo"},
        {"type": "text-delta", "id": "other", "delta": "nobody's"},
        {"type": "text-end", "id": "t"},
        {"type": "finish-step"},
        {"type": "finish", "messageMetadata": {"a": {"b": 1}}},
        {"type": "message-metadata", "messageMetadata": {"a": {"c": 2}}},
    ],
    "thoughts that go on": [
        {"type": "start", "messageId": "m"},
        {"type": "reasoning-start", "id": "r"},
        {"type": "reasoning-delta", "id": "r", "delta": "Hm"},
    ],
    "a call": [
        {"type": "start", "messageId": "m"},
        {"type": "tool-input-start", **CALL},
        {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": '{"at":"le'},
        {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": 'ft"}'},
        {"type": "tool-input-available", **CALL, "input": {"at": "left"}},
        {"type": "tool-output-available", "toolCallId": "c", "output": 1, "preliminary": True},
        {"type": "tool-output-available", "toolCallId": "c", "output": 2},
        {"type": "tool-output-available", "toolCallId": "c", "output": 3, "preliminary": True},
        {"type": "tool-input-start", **CALL},
    ],
    "an approval that is repeated": [
        {"type": "start", "messageId": "m"},
        {"type": "tool-input-available", **CALL, "input": {}},
        {"type": "tool-approval-request", "toolCallId": "c", "approvalId": "a"},
        {"type": "tool-approval-response", "approvalId": "a", "approved": True},
        {"type": "tool-approval-request", "toolCallId": "c", "approvalId": "a"},
        {"type": "tool-output-denied", "toolCallId": "c"},
        {"type": "tool-output-error", "toolCallId": "c", "errorText": "no"},
        {"type": "tool-output-error", "toolCallId": "nobody's", "errorText": "no"},
    ],
    "unknown": [
        {"type": "start", "messageId": "m"},
        {"type": "tool-input-available", **CALL, "input": {}},
        {
            "type": "tool-output-error",
            "toolCallId": "c",
            "errorText": "?",
            "providerMetadata": {"outlast": {"outcome": "unknown"}},
        },
    ],
    "an attempt that was thrown away": [
        {"type": "start", "messageId": "m"},
        {"type": "text-start", "id": "t"},
        {"type": "text-delta", "id": "t", "delta": "wrong"},
        {"type": "start", "messageId": "m"},
        {"type": "start-step"},
        {"type": "text-start", "id": "t"},
        {"type": "text-delta", "id": "t", "delta": "again"},
        {"type": "reset-step"},
        {"type": "text-start", "id": "t"},
        {"type": "text-delta", "id": "t", "delta": "right"},
    ],
    "data, files and sources": [
        {"type": "start", "messageId": "m"},
        {"type": "data-x", "id": "1", "data": 1},
        {"type": "data-x", "id": "1", "data": 2},
        {"type": "data-x", "id": "2", "data": 3, "transient": True},
        {"type": "file", "url": "data:,x", "mediaType": "text/plain"},
        {"type": "source-url", "sourceId": "s", "url": "https://example.org/"},
        {"type": "tool-input-error", **CALL, "input": "{", "errorText": "half"},
    ],
}


def _seen(message: dict[str, Any]) -> dict[str, Any]:
    """What can be seen of a message: not what its parts carry for the provider, or for the next request."""
    hidden = ("providerMetadata", "callProviderMetadata", "rawInput")
    parts = [
        {name: value for name, value in part.items() if name not in hidden and value is not False}
        for part in message["parts"]
    ]
    for part in parts:
        if "approval" in part:
            given = part["approval"].items()
            part["approval"] = {name: value for name, value in given if value is not None}
    return {**message, "parts": parts}


@pytest.mark.parametrize("base", [None, {"id": "b", "role": "assistant", "parts": []}])
def test_chunks_become_the_message_that_the_server_makes_of_them(
    page: Page, base: dict[str, Any] | None
) -> None:
    streams = [*STREAMS.values()]
    if base is not None:  # what goes on with a message does not name it
        base = {**base, "parts": [{"type": "text", "text": "before"}]}
        streams = [[{"type": "start"}, *stream[1:]] for stream in streams]
        streams = [[each for each in stream if "messageId" not in each] for stream in streams]
    made = page.evaluate(
        """async ([streams, base]) => {
            const { MessageBuilder } = await import("/_outlast/ui/messages.js");
            return streams.map(stream => {
                const builder = new MessageBuilder(base);
                stream.forEach(chunk => builder.apply(chunk));
                return builder.message;
            });
        }""",
        [streams, base],
    )
    for stream, found in zip(streams, made, strict=True):
        builder = MessageBuilder(base)
        for chunk in stream:
            builder.apply(chunk)
        assert _seen(found) == _seen(builder.message())
