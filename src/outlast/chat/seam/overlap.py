"""Where a text that arrives character by character lies in a text that is known. Pure.

Both are compared folded (`folding`). While what has arrived occurs somewhere in the known text, the overlap
may still grow; when it is a suffix of the known text, the end is reached, and what follows is new. Of several
suffixes the longest counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from outlast.chat.seam.folding import Folding, is_wide, weight
from outlast.chat.seam.instruct import tail_of

LEAST_WORD = 3  # letters of a repeated word at the very end
_TRACKED = 64  # folded characters after which few places are left
_COMPARED = 256
_SHORT = 128
_MOST_PLACES = 64
_LEAD_IN = frozenset("\"'.([{<…")


@dataclass(frozen=True, slots=True)
class Stored:
    """A text that was shown, and what is looked for in its continuation."""

    text: str
    folded: str
    tail: str  # what the model was asked to begin with
    folded_tail: str
    leading: str  # characters at either end that folding drops
    trailing: str
    folding: Folding = field(repr=False)

    @classmethod
    def of(cls, text: str) -> Stored:
        folding = Folding()
        tail = tail_of(text)
        return cls(
            text,
            text.translate(folding),
            tail,
            tail.translate(folding),
            _dropped_run(text, folding),
            _dropped_run(text[::-1], folding)[::-1],
            folding,
        )

    def ends_with(self, exactly: str, least: int) -> bool:
        """Whether the text ends with exactly this, which has so many characters besides white space."""
        end = len(self.text) - len(self.trailing)
        start = end - len(exactly)
        if start < 0 or not self.text.startswith(exactly, start):
            return False
        if self.text[max(0, start - 1) : start + 1].isspace() and start > 0:
            return False  # nobody begins in the middle of an indentation
        return sum(not char.isspace() for char in exactly) >= least

    def ends_with_words(self, length: int, exactly: str) -> bool:
        """Whether the last so many folded characters are these words, from the beginning of the first on."""
        letters = sum(char.isalpha() and not is_wide(char) for char in exactly)
        if letters < LEAST_WORD or not exactly[0].isalpha() or is_wide(exactly[0]):
            return False
        place = self._place(length)
        if place is None or self.text[place:] != exactly:
            return False  # also "very " and "very": two words, not one twice
        return place == 0 or not self.text[place - 1].isalnum()

    def _place(self, length: int) -> int | None:
        """Where in the text its last so many folded characters begin; None: inside a character."""
        place = len(self.text)
        while length > 0:
            place -= 1
            length -= len(self.folding[ord(self.text[place])])
        return place if length == 0 else None


def _dropped_run(text: str, folding: Folding) -> str:
    for place, char in enumerate(text):
        if folding[ord(char)]:
            return text[:place]
    return text


@dataclass(frozen=True, slots=True)
class Found:
    """The end of the stored text, in the continuation."""

    length: int  # folded characters that are repeated
    end: int  # the place behind them
    unused: str  # folds of the last character that lie beyond


class Overlap:
    """One reading of a continuation: from `offset` on it repeats the stored text from some place on.

    An overlap of less `weight` than `least` may be a coincidence, and so may one of fewer characters than
    `least_exact`, if they are exactly the same. With `allows_words` it counts nevertheless if it is the whole
    stored text, or whole words at its end. Characters of `between` at its beginning are not part of it.
    """

    def __init__(
        self,
        stored: Stored,
        offset: int,
        *,
        least: int,
        least_exact: int,
        allows_words: bool = True,
        between: str = "",
    ) -> None:
        self._stored = stored
        self._least = least
        self._least_exact = least_exact
        self._allows_words = allows_words
        self._between = between
        self._begin(offset)

    def _begin(self, offset: int) -> None:
        self.offset = offset
        self.found: Found | None = None
        self.lead = 0  # folded characters that are those which the stored text begins with
        self.weight = 0
        self.is_growing = bool(self._stored.folded)
        self._length = 0
        self._folded = ""  # what has arrived, up to what is compared as a whole
        self._exact = 0  # characters that are those which the stored text begins with
        self._begin_with = ""  # the first characters as they are
        self._places: list[int] | None = None  # behind what has arrived, once few are left

    @property
    def is_expected(self) -> bool:
        """Whether what has arrived is how the tail begins, which was asked for, or the stored text."""
        if not self._length:
            return False
        is_start = self.lead == self._length
        return is_start or (
            self._length <= _COMPARED and self._stored.folded_tail.startswith(self._folded)
        )

    def take(self, char: str, folded: str, end: int) -> None:
        """One more character of the continuation, its fold, and the place behind it."""
        if self.offset == end - 1 and char in self._between:
            self.offset, self._between = end, "\n" if char == "\n" else ""
            return
        if not self.is_growing:
            return
        if len(self._begin_with) < _SHORT:
            self._begin_with += char
        if self._exact == end - self.offset - 1:
            self._exact += self._stored.text[self._exact : self._exact + 1] == char
        for place, each in enumerate(folded):
            is_at_end = self._compare(each)
            if is_at_end and self._is_certain():
                self.found = Found(self._length, end, folded[place + 1 :])
            elif not is_at_end and self._is_behind_lead_in():
                self._restart(char, each, end)

    def _compare(self, char: str) -> bool:
        """One more folded character; whether the end is reached."""
        known = self._stored.folded
        if self.lead == self._length and known[self.lead : self.lead + 1] == char:
            self.lead += 1
        self._length += 1
        self.weight += weight(char)
        if self._length <= _COMPARED:
            self._folded += char
        if self._places is not None:
            behind = [place + 1 for place in self._places if known[place] == char]
            self._places = [place for place in behind if place < len(known)]
            self.is_growing = bool(self._places)
            return len(known) in behind
        self.is_growing = known.find(self._folded, 0, len(known) - 1) >= 0
        if self.is_growing and self._length >= _TRACKED:
            self._places = _places_behind(self._folded, known)
        return known.endswith(self._folded)

    def _is_certain(self) -> bool:
        """Whether the overlap that has reached the end is no coincidence."""
        stored = self._stored
        if self.weight >= self._least or stored.ends_with(self._begin_with, self._least_exact):
            return True
        if not self._allows_words:
            return False
        if self._exact >= len(stored.text) - len(stored.trailing):
            return self._length >= 2
        return stored.ends_with_words(self._length, self._begin_with)

    def _is_behind_lead_in(self) -> bool:
        """Whether the last character does not fit, and all before it is quotation marks or dots."""
        return not self.is_growing and _LEAD_IN.issuperset(self._folded[:-1] or self._folded)

    def _restart(self, char: str, folded: str, end: int) -> None:
        """Read on behind the quotation marks."""
        is_mark = folded in _LEAD_IN
        self._begin(end if is_mark else end - 1)
        if not is_mark:
            self.take(char, folded, end)


def _places_behind(part: str, whole: str) -> list[int]:
    """The places behind every occurrence of a part, but the last ones and the first if there are many."""
    places = [found.start() + len(part) for found in re.finditer(f"(?={re.escape(part)})", whole)]
    if len(places) > _MOST_PLACES:
        places = [places[0], *places[1 - _MOST_PLACES :]]
    return [place for place in places if place < len(whole)]
