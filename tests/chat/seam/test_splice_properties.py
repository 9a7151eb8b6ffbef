"""For every text, cut and overlap: the answer, once."""

from __future__ import annotations

import random

import pytest
from benchmarks.seam.misbehaviours import (
    GREETINGS,
    SPLICEABLE,
    WRONG,
    Misbehaviour,
    case,
    markdown,
    pieces,
    prose,
    restart_differently,
    spliced,
    switch_language,
)
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from outlast.chat.seam.folding import Folding, weight
from outlast.chat.seam.instruct import is_negligible, tail_of
from outlast.chat.seam.splice import Splicer, SpliceSettings

MAX_BREAK = 12  # characters: a code block is closed, and a paragraph begins
CASES = 1000  # of each misbehaviour: 10,000 in all

WORDS = st.sampled_from(
    [
        *(
            "the ",
            "harbour",
            " was",
            "\n\n",
            "- ",
            "**",
            "```",
            "```py\n",
            "`",
            ": ",
            "港口",
            "很安静",
            "。",
        ),
        *(
            "ہے ",
            "e\u0301",
            "é",
            "👩‍👩‍👧",
            "‍👦",
            "ﬁ",
            "ß",
            "ss",
            "“",
            '"',
            "...",
            "…",
            "Sure, ",
            "1. ",
            "| ",
            "# ",
        ),
    ]
)
TEXTS = st.one_of(
    st.text(max_size=120),
    st.lists(WORDS, max_size=60).map("".join),
    st.builds(
        lambda seed, script, length, write: write(random.Random(seed), script, length),
        st.integers(0, 10_000),
        st.sampled_from(["en", "de", "ar", "zh", "ja", "ko", "hi"]),
        st.integers(20, 600),
        st.sampled_from([prose, markdown]),
    ),
)
LONGER = st.tuples(TEXTS, TEXTS).map("".join).filter(lambda text: len(text) > 60)
CUTS = st.floats(0.0, 1.0)


def cut(text: str, where: float) -> tuple[str, str]:
    place = max(1, round(len(text) * where))
    return text[:place], text[place:]


def cut_up(text: str, seed: int) -> list[str]:
    return list(pieces(random.Random(seed), text))


@settings(max_examples=400)
@given(TEXTS.filter(bool), CUTS, st.integers(0, 99))
def test_a_model_that_obeys_is_spliced_whatever_the_text(
    text: str, where: float, seed: int
) -> None:
    stored, rest = cut(text, where)
    shown, verdict = spliced(stored, cut_up(tail_of(stored) + rest, seed))
    assert shown == rest
    assert verdict.kind == "spliced"


def overlaps(stored: str, said: str) -> list[int]:
    """The folded lengths at which the continuation can be read as a repetition of the stored text's end."""
    folding = Folding()
    known, folded = stored.translate(folding), said.translate(folding)
    longest = min(len(known), len(folded))
    return [size for size in range(1, longest + 1) if known.endswith(folded[:size])]


@settings(max_examples=600, suppress_health_check=[HealthCheck.filter_too_much])
@given(LONGER, st.floats(0.3, 1.0), CUTS, st.integers(0, 99))
def test_every_overlap_that_can_be_read_in_one_way_is_removed(
    text: str, where: float, share: float, seed: int
) -> None:
    stored, rest = cut(text, where)
    repeated = stored[round(len(stored) * share) :]
    folded = repeated.translate(Folding())
    assume(weight(folded) >= 24)
    said = repeated + rest
    assume(overlaps(stored, said) == [len(folded)])
    assume(not repeated.isspace())
    assert spliced(stored, cut_up(said, seed))[0] == rest


@settings(max_examples=300)
@given(TEXTS.filter(bool), CUTS, st.sampled_from(["", *GREETINGS]), st.integers(0, 99))
def test_a_model_that_starts_over_is_spliced(
    text: str, where: float, greeting: str, seed: int
) -> None:
    stored, rest = cut(text, where)
    assume(not is_negligible(stored) and not stored[0].isspace())
    folded = stored.translate(Folding())
    assume(overlaps(stored, stored + rest) == [len(folded)])
    assume(not greeting or not overlaps(stored, greeting + stored + rest))
    assume(stored[-len(tail_of(stored)) :] == stored or not stored.startswith(tail_of(stored)))
    assert spliced(stored, cut_up(greeting + stored + rest, seed))[0] == rest


SAID = st.one_of(
    TEXTS,
    st.builds(lambda greeting, text: greeting + text, st.sampled_from(GREETINGS), TEXTS),
)


@settings(max_examples=400)
@given(TEXTS, SAID, CUTS, st.integers(0, 99), st.booleans(), st.booleans())
def test_it_does_not_matter_how_a_continuation_is_cut_into_pieces(
    stored: str, said: str, share: float, seed: int, may_replace: bool, is_prose: bool
) -> None:
    given_settings = SpliceSettings(may_replace=may_replace, is_prose=is_prose)
    said = stored[round(len(stored) * share) :] + said
    whole = spliced(stored, [said], given_settings)
    assert spliced(stored, list(said), given_settings) == whole
    assert spliced(stored, cut_up(said, seed), given_settings) == whole


@settings(max_examples=400)
@given(TEXTS, SAID, CUTS)
def test_what_is_shown_is_the_end_of_what_was_said(stored: str, said: str, share: float) -> None:
    """Nothing is shown that the model did not say, but for a break before it, and nothing in it is lost."""
    said = stored[round(len(stored) * share) :] + said
    shown, verdict = spliced(stored, [said])
    breaks = [size for size in range(MAX_BREAK) if said.endswith(shown[size:])]
    assert breaks
    assert verdict.held <= 200
    if verdict.kind == "replace" or verdict.reason in ("direct", "anew", "language", "refusal"):
        assert shown.endswith(said[-1:])
        assert verdict.removed + len(shown) >= len(said)


@settings(max_examples=200)
@given(TEXTS, st.lists(st.tuples(st.text(max_size=40), st.integers(0, 300)), max_size=20))
def test_no_text_waits_longer_than_it_may(stored: str, deltas: list[tuple[str, int]]) -> None:
    splicer, now, shown, said = Splicer(stored), 0.0, "", ""
    for text, pause in deltas:
        now += pause
        if splicer.due is not None and now >= splicer.due:
            shown += splicer.tick(splicer.due)
            assert splicer.verdict is not None
        shown += splicer.feed(text, now)
        said += text
        assert splicer.due is None or now < splicer.due <= now + 400
    shown += splicer.finish(now)
    assert splicer.due is None
    assert splicer.verdict is not None


# --- ten thousand --------------------------------------------------------------------------------


@pytest.mark.parametrize("behave", SPLICEABLE)
def test_no_character_is_lost_and_none_repeated(behave: Misbehaviour) -> None:
    chance = random.Random(behave.__name__)
    wrong = []
    for _ in range(CASES):
        one = case(chance, behave)
        shown, verdict = spliced(one.stored, pieces(chance, one.said))
        assert verdict.held <= 200
        if shown != one.rest or verdict.kind == "replace":
            wrong.append((one, shown, verdict))
    assert len(wrong) <= CASES // 100, wrong[:3]
    for one, shown, verdict in wrong:  # then it is seen, and nothing is lost
        assert verdict.kind in ("replace", "new_paragraph"), (one, shown)
        assert shown.endswith(one.rest)


@pytest.mark.parametrize(
    ("behave", "recognised"), [(restart_differently, 0.5), (switch_language, 0.8)]
)
def test_nothing_of_a_new_answer_is_lost(behave: Misbehaviour, recognised: float) -> None:
    """Where the stored text ends with a sentence, or the script has no capitals, a new answer may be taken
    for the rest: it is shown behind the old one then.
    """
    assert behave in WRONG
    chance = random.Random(behave.__name__)
    seen = 0
    for _ in range(CASES // 2):
        one = case(chance, behave)
        shown, verdict = spliced(one.stored, pieces(chance, one.said))
        assert verdict.held <= 200
        seen += verdict.kind in ("replace", "new_paragraph")
        if verdict.kind == "spliced":  # a word or a line that was opened twice
            assert one.said.endswith(shown)
        else:
            assert shown.endswith(one.said.lstrip())
    assert seen >= recognised * CASES / 2
