"""Text reduced to what a model cannot get wrong when it repeats itself. Pure.

A model that repeats a passage changes its looks: white space, Markdown, capitals, quotes, the way an accent
is encoded. Folded, both look the same. Folding goes character by character, so the fold of a text is the
folds of its characters in a row, and a place in one can be found in the other.
"""

from __future__ import annotations

import unicodedata

from outlast.chat.message import words

_MARKS = frozenset("*_`~#>|\\+" + words.BULLETS)
_PLAIN = {
    **dict.fromkeys(words.SINGLE_QUOTES, "'"),
    **dict.fromkeys(words.DOUBLE_QUOTES, '"'),
    "。": ".",
    "、": ",",
}
_DROPPED = frozenset({"Cf", "Cc", "Pd", "Zs", "Zl", "Zp"})  # invisible, dashes, white space
_WIDE = (
    (0x3040, 0x30FF),  # kana
    (0x3400, 0x9FFF),  # Chinese characters
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
_WIDE_WEIGHT = 3


class Folding(dict[int, str]):
    """A table for `str.translate` that learns each character when it first meets it."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        plain = unicodedata.normalize("NFKD", _PLAIN.get(char, char).casefold())
        self[code] = "".join(each for each in plain if not _is_dropped(each))
        return self[code]


def _is_dropped(char: str) -> bool:
    if char in _MARKS or "\ufe00" <= char <= "\ufe0f":  # the latter choose between glyphs
        return True
    return unicodedata.category(char) in _DROPPED


def is_wide(char: str) -> bool:
    """Whether it belongs to a script in which a character says as much as a word's syllable."""
    code = ord(char)
    return code >= _WIDE[0][0] and any(first <= code <= last for first, last in _WIDE)


def weight(folded: str) -> int:
    """How much a folded text says, in characters of an alphabet."""
    if folded.isascii():
        return len(folded)
    return sum(_WIDE_WEIGHT if is_wide(char) else 1 for char in folded)
