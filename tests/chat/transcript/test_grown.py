"""Values of a path are made once for each message, and are right after every change of the path."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from outlast.chat.transcript.grown import Grown, new_in


def message(id: int, text: str = "") -> dict[str, Any]:
    return {"id": str(id), "text": text}


def test_only_new_messages_are_looked_at() -> None:
    looked: list[str] = []

    def derive(each: dict[str, Any]) -> str:
        looked.append(each["id"])
        return str(each["id"] + each["text"])

    grown, first = Grown(derive), [message(1), message(2)]
    assert grown.of(first) == ["1", "2"]
    second = [*first, message(3)]
    assert grown.of(second) == ["1", "2", "3"]
    assert looked == ["1", "2", "3"]
    assert grown.of([message(1, "edited"), *second[1:]]) == ["1edited", "2", "3"]
    assert grown.of([]) == []


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=8))
def test_the_values_are_those_of_the_path_whatever_it_was_before(paths: list[list[int]]) -> None:
    known = [message(n) for n in range(5)]
    grown = Grown(lambda each: each["id"])
    for path in paths:
        assert grown.of([known[n] for n in path]) == [str(n) for n in path]


def test_a_shorter_or_another_path_has_nothing_in_common() -> None:
    one, two = message(1), message(2)
    assert new_in([one, two], [one]) == 1
    assert new_in([one], [one, two]) == 0
    assert new_in([two, one], [one]) == 0
