"""A message as it stands in the index: slices of its words, small enough for both engines. Pure.

A position in a `tsvector` is at most 16,383, a word in it has at most 255 positions, and all of it takes at
most a megabyte. Slices overlap, so that no phrase is cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.session.search.query import MAX_WORDS
from outlast.session.search.words import Analyser, Piece

MAX_SLICE_WORDS = 8_000
MAX_SAME_WORDS = 255
MAX_SLICE_CHARACTERS = 75_000  # of words; 300,000 bytes at most
MAX_SLICES = 100  # the rest of a longer message is not found
STEM = "~"


@dataclass(frozen=True, slots=True)
class Slice:
    """Some words of a message, and the part of its text that they are.

    `words` is separated by spaces. `stems` has, word for word, `~` and the stem, or nothing where that is the
    word itself; it is empty if it always is.
    """

    words: str
    stems: str
    start: int
    length: int


def slices(text: str, analyser: Analyser) -> list[Slice]:
    """Return the words of a text in slices; a text without words is one empty slice."""
    pieces = analyser.pieces(text)
    if len(pieces) <= MAX_SAME_WORDS:
        return [_slice(pieces, 0, len(text))]
    pieces = analyser.spans(text)
    found: list[Slice] = []
    first = 0
    while len(found) < MAX_SLICES:
        end = _end(pieces, first)
        start = pieces[first].start if first else 0
        stop = pieces[end - 1].end if end < len(pieces) else len(text)
        found.append(_slice(pieces[first:end], start, stop - start))
        if end == len(pieces):
            break
        first = end - MAX_WORDS + 1
    return found


def _end(pieces: Sequence[Piece], first: int) -> int:
    """Return the end of the slice that begins with the piece `first`."""
    counts: Counter[str] = Counter()
    characters = 0
    last = min(len(pieces), first + MAX_SLICE_WORDS)
    for at in range(first, last):
        word, stem, _, _ = pieces[at]
        counts[word] += 1
        characters += len(word) + len(stem)
        if counts[word] > MAX_SAME_WORDS or characters > MAX_SLICE_CHARACTERS:
            return at
    return last


def _slice(pieces: Sequence[Piece], start: int, length: int) -> Slice:
    words = " ".join([piece[0] for piece in pieces])
    if not any(piece[1] for piece in pieces):
        return Slice(words, "", start, length)
    stems = " ".join([STEM + piece[1] if piece[1] else "" for piece in pieces])
    return Slice(words, stems, start, length)
