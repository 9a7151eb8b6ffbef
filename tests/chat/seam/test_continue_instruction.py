"""What a model is asked that cannot be handed the beginning of its answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.chat.seam.instruct import (
    LONGEST_TAIL,
    SHORTEST_TAIL,
    continue_instruction,
    is_continue_instruction,
    is_negligible,
    tail_of,
)

LONG = "The harbour was quiet. Far out at sea, a single light moved slowly to the north, and nobody saw it"


def test_the_end_of_the_answer_is_quoted_as_it_is() -> None:
    text = LONG + ",\n  **but"
    asked = continue_instruction(text)
    assert f"<tail>{tail_of(text)}</tail>" in asked
    assert text.endswith(tail_of(text))


def test_a_quotation_begins_with_a_word() -> None:
    tail = tail_of(LONG)
    assert SHORTEST_TAIL <= len(tail) < len(LONG)
    assert LONG[: -len(tail)].endswith(" ")
    assert not tail[0].isspace()


def test_a_quotation_that_occurs_more_than_once_is_longer() -> None:
    refrain = "Row, row, row your boat gently down the stream of the river. "
    text = f"First verse. {refrain}Second verse. {refrain}"
    tail = tail_of(text)
    assert text.count(tail) == 1
    assert len(tail) > len(tail_of(f"First verse. {refrain}"))


def test_a_quotation_does_not_begin_in_the_middle_of_a_character() -> None:
    text = "👩‍👩‍👧‍👦" * 40
    assert tail_of(text)[0] == "👩"
    text = "e\u0301" * 100
    assert tail_of(text)[0] == "e"


@given(st.text(min_size=1, max_size=400))
def test_a_quotation_is_the_end_of_the_text_and_of_a_bounded_length(text: str) -> None:
    tail = tail_of(text)
    assert tail
    assert text.endswith(tail)
    assert len(tail) <= LONGEST_TAIL + 40


@pytest.mark.parametrize("text", ["", " ", "- ", "##"])
def test_next_to_nothing_is_written_again(text: str) -> None:
    assert is_negligible(text)
    assert "<tail>" not in continue_instruction(text)


@pytest.mark.parametrize("text", ["He had", "港口", "1. Boil", "T", "He"])
def test_a_word_is_continued(text: str) -> None:
    assert not is_negligible(text)
    assert f"<tail>{text}</tail>" in continue_instruction(text)


def test_an_instruction_is_nobodys_prompt() -> None:
    assert is_continue_instruction(continue_instruction(LONG))
    assert is_continue_instruction(continue_instruction(""))
    assert not is_continue_instruction("Your last answer was interrupted. Why?")
    assert not is_continue_instruction(["x"])
