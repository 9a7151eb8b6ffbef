"""What a continuation begins with: greetings, refusals, other languages, new sentences."""

from __future__ import annotations

import pytest
from benchmarks.seam.misbehaviours import GREETINGS

from outlast.chat.seam.beginnings import (
    begins_anew,
    gap,
    is_alike,
    is_another_language,
    is_refusal,
    is_unfinished,
    open_fence,
    paragraph_break,
    preamble_end,
    reopened_fence_end,
)


@pytest.mark.parametrize("greeting", GREETINGS)
def test_a_greeting_that_talks_about_continuing_ends_before_the_answer(greeting: str) -> None:
    text = greeting + "light moved."
    end = preamble_end(text, after_unfinished=True)
    assert text[:end].strip() == greeting.strip()


@pytest.mark.parametrize(
    "text",
    [
        "Sure thing! I'll continue from where I left off.\n\n---\n\n",
        "Here is the continuation of the story:\n",
        "Certainly, here's the rest of the code:\n",
        "Okay, picking up where I stopped: ",
        "(continued)\n",
    ],
)
def test_greetings_come_in_many_forms(text: str) -> None:
    end = preamble_end(text + "Light moved.", after_unfinished=True)
    assert 0 < end <= len(text)
    assert text[end:].strip() == ""


@pytest.mark.parametrize(
    "text",
    [
        "sure, continuing his walk:\n",  # in the middle of a sentence
        " Continuing north:\n",
        "Sure, he said, and went on.\n",
        "Here are five fruits:\n",
        "Continuing north, they came to a harbour. ",
        "계속 걸었다. ",
        "## Continued fractions\n\n",  # a heading
        "Resuming a subscription\n\n",
        "आगे किसी ओर गिर\n\n",
        "接下来是第二点\n\n",
        "I continue to work: ",
        "Yes: ",
    ],
)
def test_an_answer_that_only_sounds_like_a_greeting_is_kept(text: str) -> None:
    assert preamble_end(text + "Light moved.", after_unfinished=True) == 0


def test_the_line_behind_a_greeting_is_kept_unless_it_is_one() -> None:
    greeting = "**Continued:**"
    text = f"{greeting}\n\nContinued fractions\n\nThey are old."
    assert preamble_end(text, after_unfinished=True) == len(greeting)
    text = f"Sure, I'll continue.\n\n{greeting}"
    assert preamble_end(f"{text}\n\nThey are old.", after_unfinished=True) == len(text)


def test_a_bare_sure_counts_only_where_no_sentence_can_continue_with_it() -> None:
    assert preamble_end("Sure!\n\nlight", after_unfinished=True) == len("Sure!\n\n")
    assert preamble_end("Sure!\n\nlight", after_unfinished=False) == 0


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("I apologize, but I am unable to continue.", True),
        ("Es tut mir leid, aber das kann ich nicht fortsetzen.", True),
        ("抱歉，我无法继续这个回答。", True),
        ("申し訳ありませんが、お答えできません。", True),
        ("I'm sorry for the delay. Here is more.", False),
        ("The engine cannot start.", False),
        ("sort of light moved", False),
    ],
)
def test_a_refusal_is_sorry_and_cannot(text: str, is_one: bool) -> None:
    assert is_refusal(text) is is_one


ENGLISH = (
    "The light that moved was far out at sea, and it was not for us to know which ship it was. " * 2
)
GERMAN = (
    "Das Licht war weit draußen auf dem Meer, und es ist nicht an uns zu wissen, von wem es ist. "
    * 2
)


@pytest.mark.parametrize(
    ("text", "rest", "is_another"),
    [
        (ENGLISH, GERMAN, True),
        (GERMAN, ENGLISH, True),
        (ENGLISH, ENGLISH, False),
        (ENGLISH, "и никто не видел огонька", True),
        (ENGLISH, "没有人看见那盏灯火", False),  # too short to be certain of
        (
            ENGLISH,
            "没有人看见那盏灯火，它在远处的海面上慢慢地移动着，一直移动到了天亮的时候才停下来",
            True,
        ),
        (ENGLISH, "誰もその灯りを見ていなかった", True),
        ("港口很安静。远处的海面上有一点灯火。" * 3, "誰もその灯りを見ていなかった。", True),
        (ENGLISH, "Kiel, Riga, Oslo", False),
        (ENGLISH + "```py\n# комментарий по-русски\n```", "and it went", False),
        ("Гавань была тиха.", "```py\nlight = sea.ships[0].lamp\n```", False),
    ],
)
def test_languages_differ_only_if_both_are_certain(text: str, rest: str, is_another: bool) -> None:
    assert is_another_language(text, rest) is is_another


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("The light", True),
        ("The light, ", True),
        ("The light.", False),
        ('"The light."', False),
        ("The light:", False),
        ("The light\n", False),
        ("灯火很慢。", False),
        ("灯火很", True),
        ("", False),
        ("**The light.**", False),
    ],
)
def test_a_sentence_is_unfinished_until_it_has_its_end(text: str, is_one: bool) -> None:
    assert is_unfinished(text) is is_one


@pytest.mark.parametrize(
    ("text", "fence"),
    [
        ("a\n```py\nb", "```"),
        ("a\n```py\nb\n```", None),
        ("a\n```py\nb\n```\nc\n~~~\nd", "~~~"),
        ("````md\n```py\nx\n```\n", "````"),
        ("- item\n  ```sh\n  ls", "```"),
        ("inline ``` code", None),
        ("plain", None),
    ],
)
def test_a_code_block_is_open_until_its_own_fence(text: str, fence: str | None) -> None:
    assert open_fence(text) == fence


def test_a_new_paragraph_begins_behind_an_empty_line() -> None:
    assert paragraph_break("a") == "\n\n"
    assert paragraph_break("a\n") == "\n"
    assert paragraph_break("a\n\n") == ""
    assert paragraph_break("") == ""
    assert paragraph_break("```py\nb") == "\n```\n\n"
    assert paragraph_break("```py\nb\n") == "```\n\n"


def test_a_gap_is_filled_between_sentences_and_items_only() -> None:
    assert gap("It was late.", "He left") == " "
    assert gap("It was late. ", "He left") == ""
    assert gap("The U.S.", "Army") == ""
    assert gap("He had", "been") == ""  # or is it half a word?
    assert gap("- a", "- b") == "\n"
    assert gap("1. a", "2. b") == "\n"
    assert gap("a", "- b") == ""
    assert gap("```py\nx.y.", "Z") == ""


def test_a_sentence_that_begins_in_a_sentence_begins_anew() -> None:
    assert begins_anew("He had", "The sun")
    assert begins_anew("He had,", "I'm sure")
    assert begins_anew("He had", "# Suns")
    assert not begins_anew("He had ", "Paris")
    assert not begins_anew("He had", "been")
    assert not begins_anew("He had.", "The sun")
    assert not begins_anew("C", "# is")  # a language, no heading
    assert not begins_anew("- a\n- b", "- c")


def test_two_answers_to_a_question_are_alike_and_the_rest_of_one_is_not() -> None:
    first = "rainformswhenwatervapourintheaircoolsandcondensesintodroplets"
    other = "rainisformedwhenwatervapourintheaircoolsandbecomesdroplets"
    assert is_alike(other, first)
    assert not is_alike("whichthengrowheavyenoughtofalltothegroundbelow", first)
    assert not is_alike("rain", first)


def test_code_is_opened_again_only_by_a_fence_with_a_name() -> None:
    assert reopened_fence_end("```python\nx") == len("```python\n")
    assert reopened_fence_end("```\nx") == 0
    assert reopened_fence_end("x```python\n") == 0
