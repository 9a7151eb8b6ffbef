"""Whether a slice matches a query, and how well. The same function for both engines and for the scan. Pure.

The score adds up how often each term occurs (BM25, with a fixed average length, so that a score does not
depend on the other slices); a word in the very form of the query counts twice. It rewards terms that stand
close together. Of two equal slices the newer one comes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from outlast.session.search.query import SearchQuery, Term
from outlast.session.search.slices import STEM

_K1, _B = 1.2, 0.75
AVERAGE = 100  # words of a message
MAX_PLACES = 20  # of a term, for its distance to the others


class Candidate(NamedTuple):
    """A slice of a message, with the columns of `sql.FOUND`."""

    id: str
    slice: int
    number: int
    start: int
    length: int
    words: str
    stems: str


class Ranked(NamedTuple):
    """A slice that matches, and its score."""

    candidate: Candidate
    score: float


class Matcher:
    """Compares slices with one query."""

    def __init__(self, query: SearchQuery) -> None:
        self._required = [_Passages(term) for term in query.required]
        self._excluded = [_Passages(term) for term in query.excluded]

    def ranked(self, candidates: Iterable[Candidate]) -> list[Ranked]:
        """Return the best slice of each message that matches, best first."""
        best: dict[str, Ranked] = {}
        for each in candidates:
            score = self.score(each)
            if score is None:
                continue
            found = Ranked(each, score)
            known = best.setdefault(each.id, found)
            if _order(found) < _order(known):
                best[each.id] = found
        return sorted(best.values(), key=_order)

    def score(self, candidate: Candidate) -> float | None:
        """Return the score of a slice; None if it does not match."""
        words, stems = f" {candidate.words} ", f" {candidate.stems} "
        share = _K1 * (1 - _B + _B * words.count(" ") / AVERAGE)
        score = 0.0
        for term in self._required:
            count = term.count(words, stems)
            if not count:
                return None
            score += term.weight * count * (_K1 + 1) / (count + share)
        for term in self._excluded:
            if term.count(words, stems):
                return None
        if len(self._required) > 1:
            score += len(self._required) / (1 + self._closest(words, stems)[0])
        return round(score, 6)

    def place(self, candidate: Candidate) -> int:
        """Return the number of the word at which the best passage of a slice that matches begins."""
        return self._closest(f" {candidate.words} ", f" {candidate.stems} ")[1]

    def _closest(self, words: str, stems: str) -> tuple[int, int]:
        """Return how far the shortest passage with all terms reaches, and where it begins."""
        order = sorted(
            (place, number)
            for number, term in enumerate(self._required)
            for place in term.places(words, stems)
        )
        last: dict[int, int] = {}
        best = (order[-1][0] - order[0][0], order[0][0])
        for place, number in order:
            last[number] = place
            if len(last) == len(self._required):
                first = min(last.values())
                best = min(best, (place - first, first))
        return best


def _order(found: Ranked) -> tuple[float, int, int, str]:
    each = found.candidate
    return -found.score, -each.number, each.slice, each.id


class _Passages:
    """A term as the texts that contain it: among the words, and among the stems."""

    def __init__(self, term: Term) -> None:
        self.weight = len(term.words)
        self._in_stems = None if term.stem is None else f" {STEM}{term.stem} "
        if term.stem is None:
            self._in_words = [f" {' '.join(term.words)}" + ("" if term.is_prefix else " ")]
        else:
            self._in_words = [f" {word} " for word in dict.fromkeys([*term.words, term.stem])]

    def count(self, words: str, stems: str) -> int:
        found = 0 if self._in_stems is None else stems.count(self._in_stems)
        for passage in self._in_words:
            found += words.count(passage)
        return found

    def places(self, words: str, stems: str) -> list[int]:
        """Return the numbers of the words at which the term occurs; only the first ones."""
        found: list[int] = []
        for text, passage in [*((words, each) for each in self._in_words), (stems, self._in_stems)]:
            at = -1 if passage is None else text.find(passage)
            while passage is not None and at >= 0 and len(found) < MAX_PLACES:
                found.append(text.count(" ", 0, at))
                at = text.find(passage, at + 1)
        return found
