"""The words of a text: what is indexed, and what a query is compared with. The same for both engines. Pure.

A word is a run of letters, digits and marks, in lower case and without accents (`Café` is `cafe`). Scripts
that do not separate words (Chinese, Japanese, Thai, …), and Korean, whose words carry their particles, become
overlapping pairs of characters and the last character alone: `日本語` is `日本`, `本語`, `語`. So a passage
is a phrase of pairs, and a single character the beginning of a pair.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import islice
from typing import Any, NamedTuple

VERSION = 1  # of the words; index rows of another version are written again
MAX_LENGTH = 64  # characters of a word; the rest of a longer one is not compared
CACHED = 32_768  # runs per language

_UNSPACED_RANGES = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Myanmar, Khmer
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"  # Hangul
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_SEGMENT = re.compile(f"([{_UNSPACED_RANGES}]+)|[^{_UNSPACED_RANGES} ]+")
_IS_UNSPACED = re.compile(f"[{_UNSPACED_RANGES}]")
_RUN = re.compile("[^ ]+")

_ZERO_WIDTH_SPACE = 0x200B
_BREVE, _DIAERESIS, _IE = "\u0306", "\u0308", "\u0435"
# Vowel points and the stretching of Arabic and Hebrew, which most texts leave out.
_POINTS = frozenset(
    map(chr, (*range(0x064B, 0x0653), 0x0670, 0x0640, *range(0x0591, 0x05BE), 0x05BF))
) | frozenset("\u05c1\u05c2\u05c4\u05c5\u05c7")


class Piece(NamedTuple):
    """A word, its stem (empty if it is the word itself), and its place in the text."""

    word: str
    stem: str
    start: int
    end: int


class _Characters(dict[int, int]):
    """A table for `str.translate`: everything that is not part of a word becomes a space."""

    def __missing__(self, point: int) -> int:
        category = unicodedata.category(chr(point))
        is_kept = category[0] in "LNM" or (category == "Cf" and point != _ZERO_WIDTH_SPACE)
        self[point] = kept = point if is_kept else 0x20
        return kept


def _is_invisible(character: str) -> bool:
    is_selector = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    return is_selector or unicodedata.category(character) == "Cf"


_CHARACTERS = _Characters()


class Analyser:
    """Finds the words of texts in one language; `None` for no stems.

    ```python
    from outlast.session.search.words import analyser

    assert [piece.word for piece in analyser("english").pieces("Two owls, 日本語")] == [
        "two", "owls", "日本", "本語", "語",
    ]
    assert analyser("english").stem_of("owls") == "owl"
    ```
    """

    def __init__(self, language: str | None) -> None:
        self.language = language
        self.name = f"{language or 'exact'}.{VERSION}"
        self._stemmers = threading.local()  # a stemmer keeps its state in attributes
        self._known = lru_cache(CACHED)(self._pieces_of)
        if language is not None:
            self._stemmer()  # an unknown language is an error now, not at the first word

    def pieces(self, text: str) -> list[Piece]:
        """Return the words in order, with their places in the run of letters that they stand in.

        For places in the text, see `spans`.
        """
        found: list[Piece] = []
        for run in text.translate(_CHARACTERS).split():
            found += self._of(run)
        return found

    def spans(self, text: str, start: int = 0, end: int | None = None) -> list[Piece]:
        """Return the words in order, with their places in the text; only the runs between two places."""
        runs = _RUN.finditer(text.translate(_CHARACTERS), start, len(text) if end is None else end)
        return [
            Piece(word, stem, at + first, at + last)
            for run in runs
            for at in (run.start(),)
            for word, stem, first, last in self._of(run[0])
        ]

    def place_of(self, text: str, number: int) -> int:
        """Return where a word begins, by its number; 0 if the text has fewer."""
        runs = _RUN.finditer(text.translate(_CHARACTERS))
        if text.isascii():  # each run is one word
            found = next(islice(runs, number, None), None)
            return 0 if found is None else found.start()
        for run in runs:
            pieces = self._of(run[0])
            if number < len(pieces):
                return run.start() + pieces[number].start
            number -= len(pieces)
        return 0

    def _of(self, run: str) -> tuple[Piece, ...]:
        return self._known(run) if len(run) <= MAX_LENGTH else self._pieces_of(run)

    def stem_of(self, word: str) -> str:
        """Return the stem of a word in lower case, without accents."""
        if self.language is None or not word.isalpha():
            return without_accents(word)[:MAX_LENGTH]
        return without_accents(self._stemmer().stemWord(word))[:MAX_LENGTH]

    def _pieces_of(self, run: str) -> tuple[Piece, ...]:
        text = _normalised(run)
        is_aligned = len(text) == len(run)
        pieces: list[Piece] = []
        for match in _SEGMENT.finditer(text):
            for word, stem, start, end in (
                _pairs(match[0], match.start()) if match[1] else self._word(match)
            ):
                place = (start, end) if is_aligned else (0, len(run))
                pieces.append(Piece(word, stem, *place))
        return tuple(pieces)

    def _word(self, match: re.Match[str]) -> Iterator[Piece]:
        accented = match[0][:MAX_LENGTH]
        word = without_accents(accented)[:MAX_LENGTH]
        if word:
            stem = self.stem_of(accented)
            yield Piece(word, "" if stem == word else stem, *match.span())

    def _stemmer(self) -> Any:
        found = getattr(self._stemmers, "found", None)
        if found is None:
            import snowballstemmer

            known = snowballstemmer.algorithms()
            if self.language not in known:
                raise ValueError(
                    f"the language of the stemmer must be one of {', '.join(known)}, or None for none, got"
                    f" {self.language!r}"
                )
            found = self._stemmers.found = snowballstemmer.stemmer(self.language)
        return found


@cache
def analyser(language: str | None) -> Analyser:
    """Return the analyser of a language: one per process, because it remembers stems."""
    return Analyser(language)


def with_blanks(text: str) -> str:
    """Return the text with a space in place of everything that is not part of a word."""
    return text.translate(_CHARACTERS)


def is_unspaced(word: str) -> bool:
    """Return whether a word is a character, or a pair, of a script that does not separate words."""
    return len(word) <= 2 and _IS_UNSPACED.match(word) is not None


def without_accents(text: str) -> str:
    """Return the text without the marks that writers leave out, and with all others."""
    if text.isascii():
        return text
    kept: list[str] = []
    base = ""
    for character in unicodedata.normalize("NFD", text):
        if not unicodedata.combining(character):
            base = character
        elif _is_accent(base, character):
            continue
        if character not in _POINTS:
            kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))


def _is_accent(base: str, mark: str) -> bool:
    if "\u0400" <= base <= "\u052f":  # Cyrillic: й, ў and ї are letters of their own, ё is not
        return mark != _BREVE and (mark != _DIAERESIS or base == _IE)
    return base <= "\u03ff" or "\u1e00" <= base <= "\u1fff"  # Latin, Greek


def _normalised(run: str) -> str:
    """Return a run in lower case and in its compatible form, with a space where that has no letters."""
    if run.isascii():
        return run.lower()
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", run).casefold())
    return "".join(each for each in text.translate(_CHARACTERS) if not _is_invisible(each))


def _pairs(run: str, start: int) -> Iterator[Piece]:
    for at in range(len(run) - 1):
        yield Piece(run[at : at + 2], "", start + at, start + at + 2)
    yield Piece(run[-1], "", start + len(run) - 1, start + len(run))
