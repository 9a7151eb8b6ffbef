"""The seam of a continued answer: what a model says, and what is shown of it."""

from __future__ import annotations

import pytest
from benchmarks.seam.misbehaviours import GREETINGS, spliced

from outlast.chat.seam.instruct import tail_of
from outlast.chat.seam.splice import Splicer, SpliceSettings

# An answer in two parts, in the middle of a word where the script has words.
ANSWERS = {
    "English": (
        "The harbour was quiet. Far out at sea, a single lig",
        "ht moved slowly north.\n\nIt",
    ),
    "German": (
        "Der Hafen lag still. Weit draußen bewegte sich ein einzelnes Li",
        "cht nach Norden.",
    ),
    "Russian": (
        "Гавань была тиха. Далеко в море медленно двигался один ого",
        "нёк, и никто не спал.",
    ),
    "Arabic": ("كان الميناء هادئًا. وفي عرض البحر تحرك ضوء واحد ببط", "ء نحو الشمال."),
    "Hebrew": ("הנמל היה שקט. הרחק בים נע אור בודד לאט לא", "ט צפונה."),
    "Hindi": ("बंदरगाह शांत था। दूर समुद्र में एक अकेली रोशनी धीरे-धी", "रे उत्तर की ओर बढ़ी।"),
    "Korean": ("항구는 조용했다. 먼 바다에서 불빛 하나가 천천", "히 북쪽으로 움직였다."),
    "Chinese": ("港口很安静。远处的海面上，一点灯火正慢慢地", "向北移动，没有人入睡。"),
    "Japanese": ("港は静かだった。はるか沖で、ひとつの灯りがゆっくり", "と北へ動いていた。"),
    "Thai": ("ท่าเรือเงียบสงบ ไกลออกไปในทะเล แสงดวงหนึ่งเคลื่อนไป", "ทางเหนืออย่างช้าๆ"),
    "emoji": ("Packing list: ☕️ coffee, 🗺️ maps, 👩‍👩‍👧", "‍👦 family, 🇩🇪 flag."),
    "combining": ("Le cafe\u0301 e\u0301tait ferme\u0301. Il faisait tre", "\u0300s froid dehors."),
    "bold": ("The **harbour** was _quiet_. Far out, a **single li", "ght** moved `slowly` north."),
    "list": ("Bring:\n\n- warm coats\n- two lanterns\n- a good ma", "p\n- bread\n\nThen go."),
    "numbers": ("1. Boil the water.\n2. Add the salt.\n3. Stir for t", "en minutes.\n4. Serve."),
    "after an item": ("- warm coats\n- two lanterns", "\n- a good map"),
    "heading": ("# Harbours\n\nThey are quiet.\n\n## At ni", "ght\n\nA light moves."),
    "code": (
        "Like this:\n\n```python\ndef light(sea):\n    for ship in sea.ships:\n        ",
        "yield ship.lamp\n```\n\nThat is all.",
    ),
    "table": ("| port | ships |\n| --- | ---: |\n| Kiel | 12 |\n| Riga ", "| 9 |\n| Oslo | 4 |"),
    "quotation": ("> The harbour was quiet.\n> Far out at sea, a", " light moved north."),
    "between paragraphs": (
        "The harbour was quiet, and nobody slept.\n\n",
        "Far out, a light moved.",
    ),
    "after a word": ("The harbour was quiet. Far out at sea", " a light moved north."),
    "JSON": ('{"port": "Kiel", "ships": [{"name": "Ama", "lam', 'ps": 2}]}'),
}
CONTINUED = {
    "obeys": lambda stored, rest: tail_of(stored) + rest,
    "goes on": lambda stored, rest: rest,
    "repeats a part": lambda stored, rest: stored[-24:] + rest,
    "repeats everything": lambda stored, rest: stored + rest,
    "greets and obeys": lambda stored, rest: GREETINGS[0] + tail_of(stored) + rest,
    "greets and goes on": lambda stored, rest: GREETINGS[0] + rest,
    "greets in Chinese": lambda stored, rest: "好的，继续：\n\n" + tail_of(stored) + rest,
    "quotes": lambda stored, rest: "“…" + tail_of(stored) + rest,
    "introduces it": lambda stored, rest: "My last words were these:\n\n" + tail_of(stored) + rest,
}


@pytest.mark.parametrize("behaviour", CONTINUED)
@pytest.mark.parametrize("kind", ANSWERS)
def test_a_continued_answer_has_no_word_twice_and_none_missing(kind: str, behaviour: str) -> None:
    stored, rest = ANSWERS[kind]
    said = CONTINUED[behaviour](stored, rest)
    shown, verdict = spliced(stored, [said])
    assert shown == rest
    assert verdict.kind == ("continue" if behaviour == "goes on" else "spliced")
    assert verdict.removed == len(said) - len(rest)
    assert spliced(stored, list(said)) == (shown, verdict)  # however it is cut into pieces


@pytest.mark.parametrize(
    ("stored", "said", "shown"),
    [
        # Markdown, white space, capitals and quotation marks that differ
        ("The **harbour** was _qui", "The harbour was quiet.", "et."),
        ("The harbour was quiet at nig", "the  harbour\nwas *quiet* at night.", "ht."),
        ("- coats\n- two lanterns\n- ma", "* coats\n* two lanterns\n* map\n* bread", "p\n* bread"),
        ("She said “the harbour is qui", '"She said "the harbour is quiet".', 'et".'),
        ("Le cafe\u0301 e\u0301tait ferm", "Le café était fermé.", "é."),
        ("Le cafe\u0301 e\u0301tait ferme", "Le café était fermé.", "\u0301."),
        ("The first line ends here. ", "the first line ends here.\n\nNext.", "\n\nNext."),
        ("The first line ends here.\n\n", "The first line ends here. Next.", "Next."),
        ("The harbour was **quiet**", "The harbour was quiet and dark.", " and dark."),
        # a word or two at the very end
        ("It was late. He had", "had been working.", " been working."),
        ("It was late. He was unbe", "unbelievably tired.", "lievably tired."),
        ("It was late. He had", " had enough.", " had enough."),
        ("He had", "He had been working.", " been working."),
        # code that is opened a second time
        ("```py\nfor ship in sea:\n    li", "```py\nght(ship)\n```", "ght(ship)\n```"),
        (
            "```py\nfor ship in sea:\n    li",
            "Sure, here is the rest of the code:\n\n```python\nfor ship in sea:\n    light(ship)\n```",
            "ght(ship)\n```",
        ),
        ("```py\nlight(ship)\n", "```\n\nDone.", "```\n\nDone."),
        # what a model leaves out between two sentences or items
        ("The harbour was quiet.", "A light moved.", " A light moved."),
        ("- coats\n- two lanterns", "- a map", "\n- a map"),
        ("See example.com/a.", "Com", " Com"),
        ("Version 2.", "5 is out.", "5 is out."),
    ],
)
def test_a_repetition_is_found_in_other_clothes(stored: str, said: str, shown: str) -> None:
    assert spliced(stored, [said])[0] == shown
    assert spliced(stored, list(said))[0] == shown


LONG = "The harbour was quiet, and the town slept. Nobody saw the light that moved far out at sea, "


@pytest.mark.parametrize(
    ("stored", "said", "kind", "reason", "shown"),
    [
        # another answer to the same question, in the middle of a sentence
        (LONG + "slow", "The harbour was loud.", "replace", "restart", "The harbour was loud."),
        (LONG + "slow", LONG[:60] + " dreams.", "replace", "restart", LONG[:60] + " dreams."),
        ("He had", "The sun was setting.", "replace", "restart", "The sun was setting."),
        # something that nobody can continue with
        (LONG + "slow", "Penguins swim.", "new_paragraph", "anew", "\n\nPenguins swim."),
        (LONG + "slow", "## Ports", "new_paragraph", "anew", "\n\n## Ports"),
        (
            LONG + "slow",
            "I'm sorry, but I can't help with that.",
            "new_paragraph",
            "refusal",
            "\n\nI'm sorry, but I can't help with that.",
        ),
        (
            LONG + "slow",
            "и никто не видел огонька, который двигался.",
            "new_paragraph",
            "language",
            "\n\nи никто не видел огонька, который двигался.",
        ),
        (
            LONG + "slow",
            "und niemand sah, dass das Licht sich auf dem Meer bewegte, denn es war spät und die Nacht "
            "war dunkel, und der Hafen lag still im Nebel.",
            "new_paragraph",
            "language",
            "\n\nund niemand sah, dass das Licht sich auf dem Meer bewegte, denn es war spät und die "
            "Nacht war dunkel, und der Hafen lag still im Nebel.",
        ),
        (
            "```py\nlight(",
            "Sorry, I cannot do that.",
            "continue",
            "direct",
            "Sorry, I cannot do that.",
        ),
        (LONG + "bre", "Bread is cheap.", "new_paragraph", "anew", "\n\nBread is cheap."),
        # too little to be continued
        ("- ", "Penguins swim.", "replace", "restart", "Penguins swim."),
        # nothing at all
        (LONG, "", "continue", "stopped", ""),
        (LONG, LONG[:50], "spliced", "stopped", ""),
        (LONG, LONG, "spliced", "start_over", ""),
        (LONG, "Sure, continuing where I left off:\n\n", "continue", "stopped", ""),
        # what looks like one of these, and is none
        (
            'She asked: "',
            "I'm sorry, I can't come.",
            "continue",
            "direct",
            "I'm sorry, I can't come.",
        ),
        ("It was very ", "very late.", "continue", "direct", "very late."),
        (
            "```py\n        total = light(sea)\n  ",
            "      total = light(sea)\n",
            "continue",
            "direct",
            "      total = light(sea)\n",
        ),
        (
            "Гавань была тиха, и никто не спал.\n\n`",
            "``py\nlight = sea.ships[0].lamp\n```",
            "continue",
            "direct",
            "``py\nlight = sea.ships[0].lamp\n```",
        ),
        (
            "```py\n" + "light = sea.ships[0].lamp\n" * 70 + "```\n\nГавань была тиха, и никто не",
            " спал, кроме одного матроса.",
            "continue",
            "direct",
            " спал, кроме одного матроса.",
        ),
        ("We went to ", "Paris in spring.", "continue", "direct", "Paris in spring."),
        ("In Japanese it is ", "こんにちは (hello).", "continue", "direct", "こんにちは (hello)."),
        (
            "He was ",
            "sure, continuing his walk:\n",
            "continue",
            "direct",
            "sure, continuing his walk:\n",
        ),
        ("Roads lead", " here. The rest is:\n", "continue", "direct", " here. The rest is:\n"),
    ],
)
def test_a_wrong_beginning_is_recognised_and_nothing_of_it_is_lost(
    stored: str, said: str, kind: str, reason: str, shown: str
) -> None:
    found, verdict = spliced(stored, [said])
    assert (verdict.kind, verdict.reason) == (kind, reason)
    assert found == shown
    assert spliced(stored, list(said)) == (found, verdict)


@pytest.mark.parametrize(
    ("stored", "said", "shown"),
    [
        # without the sentences that are the same
        (LONG + "slow", LONG[:43] + "Somebody cried.", "\n\nSomebody cried."),
        (LONG + "slow", "The harbour was loud.", "\n\nThe harbour was loud."),
    ],
)
def test_what_had_an_effect_is_not_replaced(stored: str, said: str, shown: str) -> None:
    found, verdict = spliced(stored, [said], SpliceSettings(may_replace=False))
    assert verdict.kind == "new_paragraph"
    assert found == shown


def test_a_new_paragraph_after_code_closes_the_code_first() -> None:
    stored = "Like this:\n\n```python\n" + "light = sea.ships[0].lamp.brightness\n" * 2 + "print(li"
    said = stored[:70] + " is another answer."
    shown, verdict = spliced(stored, [said], SpliceSettings(may_replace=False))
    assert verdict.kind == "new_paragraph"
    assert shown.startswith("\n```\n\n")


def test_a_greeting_stays_if_it_may_not_be_removed() -> None:
    settings = SpliceSettings(removes_preamble=False)
    greeted = "Sure, continuing where I left off:\n\nht moved."
    shown, verdict = spliced(LONG + "slow and brig", [greeted], settings)
    assert (shown, verdict.kind) == (f"\n\n{greeted}", "new_paragraph")


def test_structured_output_gets_neither_paragraphs_nor_spaces() -> None:
    settings = SpliceSettings(is_prose=False)
    stored = '{"ports": [{"name": "Kiel", "ships": 12}, {"name": "Ri'
    assert spliced(stored, ['ga"}]}'], settings)[0] == 'ga"}]}'
    assert spliced(stored, [stored + 'ga"}]}'], settings)[0] == 'ga"}]}'
    assert spliced(stored, ["```json\n" + stored + 'ga"}]}'], settings)[0] == 'ga"}]}'
    assert spliced(stored, ["Sorry, I cannot do that."], settings)[0] == "Sorry, I cannot do that."
    other = stored[:48] + '"x": 1}]}'
    shown, verdict = spliced(stored, [other], settings)
    assert (shown, verdict.kind) == (other, "replace")


# --- time and size -------------------------------------------------------------------------------


def test_ten_thousand_repeated_characters_are_swallowed_as_they_come() -> None:
    stored = "".join(f"{n}: the harbour of {n * n} was quiet. " for n in range(280))
    assert len(stored) > 9_000
    splicer = Splicer(stored)
    for now, char in enumerate(stored):
        assert splicer.feed(char, float(now)) == ""
        assert splicer.verdict is None or now == len(stored) - 1
    assert splicer.feed("New.", 1e6) == "New."
    assert splicer.verdict is not None
    assert (splicer.verdict.reason, splicer.verdict.removed) == ("start_over", len(stored))
    assert splicer.verdict.held == 0


def test_a_passage_that_begins_with_the_last_word_is_repeated_to_its_end() -> None:
    passage = "".join(f"Candles {n} and lanterns {n * n} burned. " for n in range(20))
    stored = f"It was late. {passage}Nobody slept, and they lit more Candles"
    assert (
        spliced(stored, [passage + "Nobody slept, and they lit more Candles again."])[0]
        == " again."
    )
    assert spliced(stored, ["Candles again."])[0] == " again."


def test_nothing_that_may_be_new_is_held_back_for_longer_than_it_may_be() -> None:
    splicer = Splicer("The harbour was quiet. Far out at sea ")
    assert splicer.due is None
    assert splicer.feed("several ", 1000.0) == ""
    assert splicer.due == 1400.0
    assert splicer.feed("lights ", 1399.0) == ""
    assert splicer.tick(1399.9) == ""
    assert splicer.tick(1400.0) == "several lights "
    assert splicer.due is None
    assert splicer.verdict is not None
    assert (splicer.verdict.kind, splicer.verdict.waited) == ("continue", 400.0)
    assert splicer.feed("moved", 1401.0) == "moved"


def test_the_time_is_looked_at_with_every_text_too() -> None:
    splicer = Splicer("The harbour was quiet. Far out at sea ")
    assert splicer.feed("several ", 0.0) == ""
    assert splicer.feed("lights", 400.0) == "several lights"


def test_at_most_so_many_characters_are_held_back() -> None:
    settings = SpliceSettings(max_characters=50)
    splicer = Splicer("The harbour was quiet. Far out at sea ", settings)
    assert splicer.feed("x" * 49, 0.0) == ""
    assert splicer.feed("yz", 0.0) == "x" * 49 + "yz"
    assert splicer.verdict is not None
    assert splicer.verdict.held == 49


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ("The harbour was quiet, and far out at ", "sea a light moved in the "),
        ("It is what the harbour of the town was for, as is", " well known by the people "),
        ("0.17 1.17 2.17 3.17 ", "4.18 5.18 6.18 7.18 8.18 "),
    ],
)
def test_words_that_can_only_continue_the_sentence_are_shown_at_once(
    stored: str, said: str
) -> None:
    splicer = Splicer(stored)
    assert splicer.feed(said, 0.0) == said
    assert splicer.verdict is not None
    assert (splicer.verdict.kind, splicer.verdict.reason) == ("continue", "direct")


@pytest.mark.parametrize(
    "said",
    [
        "Several lights moved in the ",  # may be a new answer
        "sure, here is the rest of the ",
        "continuing where I left off in the ",
        "lumières dans la nuit, et le bateau ",  # none of the small words of the language
        "- and the first of the items ",
    ],
)
def test_other_words_are_held_back_for_longer(said: str) -> None:
    splicer = Splicer(
        "It is what the harbour of the town was for, and that was known. Far out at sea "
    )
    assert splicer.feed(said, 0.0) == ""


def test_a_slow_model_has_all_the_time_to_greet() -> None:
    splicer = Splicer("It was late. He had")
    for number, word in enumerate(["Certainly!", "Here", "is", "the", "continuation:"]):
        assert splicer.feed(f"{word} ", number * 1000.0) == ""
    assert splicer.due is None
    assert splicer.feed("\n\nIt was late. He had been", 9000.0) == " been"


def test_words_that_only_begin_like_a_greeting_are_shown_once_they_are_too_many() -> None:
    splicer = Splicer("It was late. ")
    said = "Here " + "and there " * 12
    shown = "".join(splicer.feed(f"{word} ", 1000.0 * n) for n, word in enumerate(said.split()))
    assert shown == said


def test_a_slow_model_that_begins_as_it_was_asked_to_has_all_the_time() -> None:
    stored = "The harbour was quiet. Far out at sea, a single light moved slowly to the nor"
    splicer = Splicer(stored)
    for number, word in enumerate(tail_of(stored).split(" ")):
        assert splicer.feed(word if number == 0 else f" {word}", number * 1000.0) == ""
    assert splicer.feed("th.", 99_000.0) == "th."


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (
            "For example, the harbour is quiet at night, and so are the islands in the bay,",
            " for example, the small ones.",
        ),
        (
            "멈췄고 가며 몰랐다. 사람들은 광장 앞에서 비가 저녁을 따라 위로",
            " 멈췄고 가며 아무도 없었다.",
        ),
    ],
)
def test_words_of_the_beginning_that_occur_again_do_not_replace_the_answer(
    stored: str, said: str
) -> None:
    shown, verdict = spliced(stored, [said])
    assert (shown, verdict.kind) == (said, "continue")


def test_a_word_or_two_that_only_look_like_a_repetition_wait_no_longer_than_others() -> None:
    splicer = Splicer("The harbour was quiet. Far out at sea, ")
    assert splicer.feed("The ", 0.0) == ""
    assert splicer.due is None  # the stored text begins like this
    assert splicer.feed("light ", 100.0) == ""
    assert splicer.due == 400.0


def test_a_greeting_is_not_waited_for_as_new_text_is() -> None:
    """It is not shown in any case, so there is nothing to show in time before the answer begins."""
    stored = "The harbour was quiet. Far out at sea, a single light moved slowly to the nor"
    splicer = Splicer(stored)
    assert splicer.feed("Sure, continuing where I left off:", 0.0) == ""
    assert splicer.due is None
    assert splicer.feed("\n\n", 500.0) == ""
    assert splicer.due is None
    assert splicer.feed(stored[-30:-20], 900.0) == ""
    assert splicer.feed(f"{stored[-20:]}th.", 1200.0) == "th."
    splicer = Splicer(stored)
    splicer.feed("Sure, continuing where I left off:\n\n", 0.0)
    splicer.feed("th. Nobody", 900.0)
    assert splicer.due == 1300.0
    assert splicer.tick(1300.0) == "th. Nobody"


def test_a_repetition_that_turns_out_to_be_new_is_shown_at_once() -> None:
    code = "def test_light(self):\n    self.assertEqual(sea.light, 1)\n"
    stored = f"```py\n{code}\ndef test_dark(self):\n    pass\n\n"
    splicer = Splicer(stored)
    assert splicer.feed(code[:-3], 0.0) == ""
    assert splicer.due is None  # it is what the reader has seen, so far
    assert splicer.feed("2", 500.0) == code[:-3] + "2"


def test_after_the_seam_text_is_returned_as_it_is() -> None:
    splicer = Splicer("The harbour was quiet and da")
    splicer.feed("The harbour was quiet and dark.", 0.0)
    text = "x" * 10_000
    assert splicer.feed(text, 1.0) is text
    assert splicer.finish(2.0) == ""
