"""The seam of an answer that a provider was handed the beginning of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.chat.seam.prefilled import PrefillSeam, sent_text

LONG = "The harbour was quiet. Far out,"


def joined(stored: str, deltas: list[str], *, echoes: bool = False) -> tuple[str, PrefillSeam]:
    seam = PrefillSeam(stored, echoes=echoes)
    shown = "".join([seam.feed(delta, 0.0) for delta in deltas]) + seam.finish(0.0)
    assert seam.verdict is not None
    return shown, seam


@pytest.mark.parametrize(
    ("stored", "said", "shown"),
    [
        (LONG, " a light moved.", " a light moved."),
        (LONG, "", ""),
        # the model writes the white space again, which was not sent
        (LONG + "\n\n", "\n\nA light", "A light"),
        (LONG + "\n", "\n\nA light", "\nA light"),
        (LONG + " ", " a light", "a light"),
        (LONG + "\n    ", "\n    light()", "light()"),
        (LONG + "\n", "\n    light()", "    light()"),
        # or other white space, or none
        (LONG + "\n\n", " a light", "a light"),
        (LONG + " ", "\n\nA light", "\n\nA light"),
        (LONG + " ", "a light", "a light"),
        (LONG + "\n\n", "\n", ""),
        # a provider that repeats what it was handed
        (LONG, LONG + " a light", " a light"),
        (LONG + "\n", LONG + "\n\nA light", "\nA light"),
        (LONG, LONG[:20] + "loud.", LONG[:20] + "loud."),
        (LONG, LONG[:20], LONG[:20]),
        ("Ha", "Ha", "Ha"),
    ],
)
def test_what_is_stored_is_not_shown_twice(stored: str, said: str, shown: str) -> None:
    for deltas in ([said], list(said)):
        found, seam = joined(stored, deltas)
        assert found == shown
        assert seam.verdict is not None
        assert seam.verdict.removed == len(said) - len(shown)
        assert seam.verdict.kind == ("continue" if said == shown else "spliced")


def test_a_short_echo_of_a_provider_that_is_known_for_it_is_taken_away() -> None:
    assert joined("Ha", list("Ha ha"), echoes=True)[0] == " ha"


@given(st.text(min_size=1), st.text(), st.integers(1, 7))
def test_an_answer_that_is_continued_exactly_is_whole(text: str, rest: str, size: int) -> None:
    said = text[len(sent_text(text)) :] + rest
    deltas = [said[place : place + size] for place in range(0, len(said), size)]
    if not said.startswith(sent_text(text)) or len(sent_text(text)) < 16:
        assert joined(text, deltas)[0] == rest


def test_after_the_seam_text_is_returned_as_it_is() -> None:
    seam = PrefillSeam(LONG)
    seam.feed(" a", 5.0)
    text = "x" * 1000
    assert seam.feed(text, 6.0) is text
    assert seam.due is None
