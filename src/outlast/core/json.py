"""JSON: strict input, one encoder, one decoder.

The encoder accepts dict (with str keys), list, str, int, float, bool and None only, so that a decoded value
equals the encoded one. Two defects come from outside and are repaired instead of rejected, so that they
cannot break a conversation: lone surrogates become U+FFFD, and NaN and the infinities become null. The
decoder replaces lone surrogates, too: JavaScript cuts strings in the middle of an emoji and sends the rest
as `\\ud83d`.
"""

from __future__ import annotations

import re
from functools import cache
from json.encoder import encode_basestring
from typing import Any

MAX_DEPTH = 150  # the decoder stops at 200
MAX_DIGITS = 4_000  # the decoder stops at 4,300

# A pair of surrogate escapes, a lone one, or any other escape, matched from left to right.
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|\\."
)

_SCALARS = frozenset({str, int, float, bool, type(None)})


@cache
def _core() -> Any:
    """Return pydantic_core, imported on first use: importing it takes longer than importing outlast."""
    import pydantic_core

    pydantic_core.to_json("")  # its first call imports more modules
    return pydantic_core


def prepare() -> None:
    """Load the encoder now, so that the first use is not delayed."""
    _core()


def encode(value: object, what: str = "value", depth: int = MAX_DEPTH) -> str:
    """Return the JSON of a strict JSON value; for any other value, raise a `TypeError` that says where it is.

    ```python
    from outlast.core import json
    assert json.encode({"n": 1, "x": float("nan")}) == '{"n":1,"x":null}'
    try:
        json.encode({"steps": [1, {2, 3}]}, "snapshot")
    except TypeError as error:
        assert "snapshot['steps'][1] is a set" in str(error)
    ```
    """
    if type(value) not in _SCALARS and not _is_strict(value, depth - 1):
        _complain(value, what, depth)
    core = _core()
    try:
        text: str = core.to_json(value, inf_nan_mode="null").decode()
    except (core.PydanticSerializationError, UnicodeEncodeError):
        text = core.to_json(_mended(value), inf_nan_mode="null").decode()
    if len(text) > MAX_DIGITS and _has_endless_int(value):
        raise TypeError(
            f"{what} contains an int of more than {MAX_DIGITS} digits; store it as a str"
        )
    return text


def encode_text(text: str) -> str | None:
    """Return the JSON of a string, fast; None if it contains a lone surrogate, which `encode` replaces."""
    if text.isascii():
        return encode_basestring(text)
    core = _core()
    try:
        encoded: str = core.to_json(text).decode()
    except (core.PydanticSerializationError, UnicodeEncodeError):
        return None
    return encoded


def decode(text: str) -> Any:
    """Return the value of a JSON text, or raise a `ValueError`.

    ```python
    from outlast.core import json
    assert json.decode(r'["cut \\ud83d", "\\ud83d\\ude00"]') == ["cut \ufffd", "😀"]
    ```
    """
    try:
        return _core().from_json(text)
    except (ValueError, TypeError):  # a TypeError when it contains a lone surrogate
        mended = _with_whole_pairs(text) if isinstance(text, str) else text
        if mended == text:
            raise
    return _core().from_json(mended)


def _with_whole_pairs(text: str) -> str:
    """Return the JSON text with U+FFFD for lone surrogates, as characters or as escapes."""
    mended = mended_text(text)
    if "\\ud" not in mended and "\\uD" not in mended:
        return mended
    return _ESCAPE.sub(lambda match: "\\ufffd" if match["half"] else match[0], mended)


def _is_strict(value: Any, depth: int) -> bool:
    """Depth first, so that a value that contains itself is soon too deep. Without recursion: it is faster."""
    left: list[tuple[Any, int]] = [(value, depth)]
    while left:
        value, depth = left.pop()
        kind = type(value)
        if kind is dict:
            for key, item in value.items():
                if type(key) is not str:
                    return False
                if type(item) not in _SCALARS:
                    if not depth:
                        return False
                    left.append((item, depth - 1))
        elif kind is list:
            for item in value:
                if type(item) not in _SCALARS:
                    if not depth:
                        return False
                    left.append((item, depth - 1))
        elif kind not in _SCALARS:
            return False
    return True


def _complain(value: object, path: str, depth: int) -> None:
    """Raise for the first element of `value` that is not strict JSON, naming its place."""
    kind = type(value)
    if not depth and isinstance(value, dict | list):
        raise TypeError(f"{path} must be nested at most {MAX_DEPTH} levels deep")
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str:
                raise TypeError(f"{path} has the key {key!r}; JSON keys must be str")
            _complain(item, f"{path}[{key!r}]", depth - 1)
    elif kind is list:
        for index, item in enumerate(value):  # type: ignore[arg-type]
            _complain(item, f"{path}[{index}]", depth - 1)
    elif kind not in _SCALARS:
        hint = {
            "tuple": "; use a list",
            "set": "; use a list",
            "bytes": "; encode it as text, for example with base64",
            "datetime": "; use .isoformat() or a timestamp",
        }.get(kind.__name__, "")
        raise TypeError(
            f"{path} is a {kind.__name__}, which is not JSON"
            f" (dict, list, str, int, float, bool, None){hint}"
        )


def mended_text(text: str) -> str:
    """Return the text with lone surrogates replaced, which every store accepts."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _mended(value: object) -> object:
    """Return the value with lone surrogates replaced, in keys too."""
    if isinstance(value, str):
        return mended_text(value)
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mended(item) for item in value]
    return value


def _has_endless_int(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_endless_int, value.values()))
    if isinstance(value, list):
        return any(map(_has_endless_int, value))
    return isinstance(value, int) and value.bit_length() > MAX_DIGITS * 3.32
