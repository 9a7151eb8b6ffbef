"""The server dies in the middle of a sentence, and the sentence finishes."""

from __future__ import annotations

import signal
from pathlib import Path

from playwright.sync_api import expect

from browser.conftest import Tabs
from browser.seen import answer, say, until_idle, until_words, words
from browser.served import LONG, Server, running

STORY = Path(__file__).parents[2] / "src/outlast/demo/said/story.md"


def test_a_killed_server_goes_on_with_the_sentence_in_every_tab(tabs: Tabs, server: Server) -> None:
    tabs.is_killed = True
    page, other = tabs.open(), tabs.open(profile="another window")
    (before,) = server.children()
    say(page, "say 200 words every 12ms")
    until_words(page, 30)
    page.get_by_role("button", name="Kill the server").click()
    rescue = page.get_by_role("region", name="Recovery")
    expect(rescue).to_contain_text(f"kill -9 {before}")
    expect(rescue).to_contain_text("It found the interrupted answer")
    expect(rescue).to_contain_text("Decision: continue where it stopped")
    expect(rescue).to_contain_text("The answer is complete. Nothing was lost.")
    (after,) = server.children()
    assert after != before
    expect(rescue).to_contain_text(f"A new worker started: {after}")
    for each in (page, other):
        expect(answer(each)).to_have_text(words(200))  # no gap, nothing twice
        expect(each.locator(".message")).to_have_count(2)
        expect(each.locator("#connection")).to_have_attribute("data-state", "open")
        until_idle(each)
    assert f"worker {before} was killed by SIGKILL" in server.log


def test_it_can_be_killed_again_and_again(tabs: Tabs, server: Server) -> None:
    tabs.is_killed = True
    page = tabs.open()
    before = server.log.count("was killed by SIGKILL")
    pauses = server.log.count("starting another in")
    say(page, "say 460 words every 12ms")
    # Up to 50 words come at once when an answer continues: the next kill is further on.
    for count in (20, 90, 160, 230, 300, 370):
        until_words(page, count)
        page.get_by_role("button", name="Kill the server").click()
    expect(answer(page)).to_have_text(words(460))
    until_idle(page)
    assert server.log.count("was killed by SIGKILL") - before == 6  # one each, and no more
    assert server.log.count("starting another in") == pauses, "each worker had served something"


def test_the_clock_stops_when_the_answer_continues(tabs: Tabs, server: Server) -> None:
    tabs.is_killed = True
    page = tabs.open()
    say(page, "say 250 words every 12ms")
    until_words(page, 30)
    page.get_by_role("button", name="Kill the server").click()
    rescue = page.get_by_role("region", name="Recovery")
    expect(rescue).to_contain_text("The answer continues")
    stopped = rescue.locator(".clock").inner_text()
    (at,) = rescue.locator("li", has_text="The answer continues").locator(".at").all_inner_texts()
    expect(page.locator("#stop")).to_be_visible()  # it is not over
    expect(rescue).to_contain_text("The answer is complete. Nothing was lost.")
    assert rescue.locator(".clock").inner_text() == stopped
    assert abs(float(stopped.split()[0]) - float(at.split()[0])) < 0.1
    expect(answer(page)).to_have_text(words(250))


def test_the_demo_tells_its_story_through_a_kill_and_stops_with_ctrl_c(
    tabs: Tabs, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("OUTLAST_DEMO_PACE", "0.01")
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    tabs.is_killed = True
    with running(tmp_path, "demo", "--no-browser") as demo:
        assert demo.link in demo.log
        tabs._server = demo
        page = tabs.open(agent="assistant")
        page.get_by_role("button", name="Tell me a long story").click()
        until_words(page, 60)
        page.get_by_role("button", name="Kill the server").click()
        expect(answer(page)).to_contain_text("and the light came round again.")
        until_idle(page)
        story = demo.messages(tabs._name, "assistant")[-1]
        said = "".join(part.get("text", "") for part in story["parts"])
        assert said == STORY.read_text().strip()
        (worker,) = demo.children()
        assert demo.stop(signal.SIGINT) == 0
        demo.until(lambda: not Path(f"/proc/{worker}").exists(), "the worker to end")
        assert "Traceback" not in demo.log
        assert demo.process.wait(LONG) == 0
