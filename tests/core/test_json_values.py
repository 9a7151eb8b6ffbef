"""The one JSON encoder: strict going in, and what it mends rather than refuses."""

from __future__ import annotations

import datetime
import enum
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core import json


class Colour(enum.Enum):
    RED = "red"


class Name(str):
    pass


REFUSED = {
    "tuple": ((1, 2), "snapshot['a'][1] is a tuple, which is not JSON"),
    "set": ({1}, "snapshot['a'][1] is a set"),
    "bytes": (b"x", "encode it as text, for example with base64"),
    "datetime": (datetime.datetime(2026, 1, 1), "use .isoformat() or a timestamp"),
    "object": (object(), "snapshot['a'][1] is a object"),
    "enum": (Colour.RED, "snapshot['a'][1] is a Colour"),
    "subclass of str": (Name("x"), "snapshot['a'][1] is a Name"),
    "subclass of dict": (OrderedDict(), "snapshot['a'][1] is a OrderedDict"),
    "key that is no text": ({1: "x"}, "snapshot['a'][1] has the key 1; JSON keys must be str"),
    "key None": ({None: "x"}, "snapshot['a'][1] has the key None"),
    "key True": ({True: "x"}, "snapshot['a'][1] has the key True"),
    "deeper": ([{"b": [0, frozenset()]}], "snapshot['a'][1][0]['b'][1] is a frozenset"),
}


@pytest.mark.parametrize(("value", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_json_is_refused_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        json.encode({"a": [0, value]}, "snapshot")
    assert said in str(caught.value)


def test_what_is_not_json_is_refused_at_the_top_too() -> None:
    with pytest.raises(TypeError, match="value is a tuple"):
        json.encode((1, 2))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
def test_numbers_that_json_does_not_have_become_null(value: float) -> None:
    assert json.encode(value) == "null"
    assert json.encode({"x": [value, 1.5]}) == '{"x":[null,1.5]}'


MENDED = {
    "a high half": ("a\ud800b", "a\ufffdb"),
    "a low half": ("a\udc00b", "a\ufffdb"),
    "at the end": ("a\ud800", "a\ufffd"),
    "the wrong way round": ("\ude00\ud83d", "\ufffd\ufffd"),
    "two halves that fit": ("\ud83d\ude00", "\U0001f600"),
}


@pytest.mark.parametrize(("text", "mended"), MENDED.values(), ids=MENDED)
def test_half_surrogate_pairs_are_mended(text: str, mended: str) -> None:
    value = {text: [text, {"in": text}], "beside": "é\0"}
    assert json.decode(json.encode(value)) == {
        mended: [mended, {"in": mended}],
        "beside": "é\0",
    }
    json.encode(value).encode()  # it is text that can be stored


@given(st.text(alphabet=st.characters() | st.characters(categories=["Cs"])))
def test_any_text_at_all_can_be_stored(text: str) -> None:
    encoded = json.encode({text: text})
    assert "\0" not in encoded
    encoded.encode("utf-8")
    ((key, value),) = json.decode(encoded).items()
    assert key == value


@given(st.floats())
def test_a_float_stays_a_float(number: float) -> None:
    back = json.decode(json.encode([number]))[0]
    assert back is None if number - number != 0 else (type(back) is float and back == number)


LARGE = [2**63, -(2**63) - 1, 2**64, 10**3000, -(10**3990)]


def nested(levels: int, kind: type) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value] if kind is list else {"in": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_what_can_be_encoded_can_be_decoded_however_deep(kind: type) -> None:
    value = nested(json.MAX_DEPTH, kind)
    assert json.decode(json.encode(value)) == value


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("levels", [json.MAX_DEPTH + 1, 500, 100_000])
def test_what_is_nested_too_deep_is_refused(kind: type, levels: int) -> None:
    value = nested(levels, kind)
    try:
        with pytest.raises(TypeError, match="nested at most 150 levels deep"):
            json.encode(value)
    finally:
        while isinstance(value, list | dict):  # freeing it at once would exhaust the C stack
            value = value[0] if kind is list else value["in"]


def test_what_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(TypeError, match="nested at most 150 levels deep"):
        json.encode(value)


@pytest.mark.parametrize(
    "number",
    [2**63, -(2**63) - 1, 2**64, 10**3000, -(10**3990)],
    ids=lambda number: f"{number.bit_length()} bits",
)
def test_large_ints_stay_ints(number: int) -> None:
    assert json.decode(json.encode({"n": number})) == {"n": number}


@pytest.mark.parametrize("digits", [4_001, 4_301, 100_000])
def test_an_int_that_could_not_be_read_again_is_refused(digits: int) -> None:
    with pytest.raises(TypeError, match=r"snapshot contains an int of more than 4000 digits"):
        json.encode({"deep": [{"n": 10 ** (digits - 1)}]}, "snapshot")


def test_long_text_is_not_mistaken_for_a_long_number() -> None:
    value = {"text": "9" * 10_000, "n": 1}
    assert json.decode(json.encode(value)) == value


@pytest.mark.parametrize("text", ["", "{", "nul", "[1,]", '{"a"}', "\0", "'x'"])
def test_what_is_not_json_any_more_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        json.decode(text)
