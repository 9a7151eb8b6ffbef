"""A short passage of a text around what was found, with the places of the found words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outlast.session.search.query import SearchQuery, Term
from outlast.session.search.words import Analyser, Piece, is_unspaced, with_blanks

LENGTH = 200  # characters, roughly
BEFORE = 60  # of these before the first word that was found
MORE = "…"
_BLANKS = dict.fromkeys(range(0x20), " ") | {0x7F: " ", 0x2028: " ", 0x2029: " "}


@dataclass(frozen=True, slots=True)
class SearchSnippet:
    """A passage, and the (start, end) of what was found in it, in order and without overlaps."""

    text: str
    marks: tuple[tuple[int, int], ...]

    def marked(self, before: str = "**", after: str = "**") -> str:
        """Return the passage with these texts around everything that was found.

        ```python
        from outlast.session.search.snippet import SearchSnippet

        assert SearchSnippet("two owls", ((4, 8),)).marked("<b>", "</b>") == "two <b>owls</b>"
        ```
        """
        parts: list[str] = []
        end = 0
        for first, last in self.marks:
            parts += (self.text[end:first], before, self.text[first:last], after)
            end = last
        return "".join(parts) + self.text[end:]


def snippet(text: str, at: int, query: SearchQuery, analyser: Analyser) -> SearchSnippet:
    """Return the passage of a text that begins a little before its word number `at`."""
    focus = analyser.place_of(text, at)
    start, end = _cut(text, focus)
    pieces = analyser.spans(text, start, end)
    marks = _merged(
        (place.start, place.end) for term in query.required for place in _found(term, pieces)
    )
    before, after = MORE if start else "", MORE if end < len(text) else ""
    shift = len(before) - start
    passage = text[start:end].translate(_BLANKS)
    return SearchSnippet(
        f"{before}{passage}{after}",
        tuple((first + shift, last + shift) for first, last in marks),
    )


def _cut(text: str, focus: int) -> tuple[int, int]:
    """Return the passage around a place: whole words, unless one is longer than it."""
    blank = with_blanks(text)
    start = max(0, min(focus - BEFORE, len(text) - LENGTH))
    if start and blank[start - 1] != " ":
        start = blank.find(" ", start, focus) + 1 or start
    end = min(len(text), start + LENGTH)
    if end < len(text) and blank[end] != " ":
        end = max(blank.rfind(" ", focus, end), 0) or end
    return start, end


def _found(term: Term, pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Return where the words of a term are, each phrase as one piece."""
    if term.stem is not None:
        forms = {*term.words, term.stem}
        yield from (each for each in pieces if each.word in forms or each.stem == term.stem)
        return
    *before, end = term.words
    for at, last in enumerate(pieces[len(before) :]):
        is_last = last.word.startswith(end) if term.is_prefix else last.word == end
        if is_last and all(map(_is, pieces[at:], before)):
            yield Piece("", "", pieces[at].start, _end(term, last))


def _is(piece: Piece, word: str) -> bool:
    return piece.word == word


def _end(term: Term, last: Piece) -> int:
    """Return the end of what was found: of a pair of characters, only the first may have been asked for."""
    is_part = term.is_prefix and is_unspaced(last.word) and last.end - last.start == len(last.word)
    return last.start + len(term.words[-1]) if is_part else last.end


def _merged(places: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(places):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged
