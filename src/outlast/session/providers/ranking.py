"""An index of passages in memory, and which of them answer a query best. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log

PASSAGE = 1500  # characters
MAX_WORDS = 32  # of a query

_WORD = re.compile(r"\w+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_SATURATION, _LENGTH = 1.2, 0.75  # the usual constants of BM25


def words(text: str) -> Iterator[str]:
    """Yield the words of a text. Chinese, Japanese and Korean text has no spaces: pairs of characters."""
    for word in _WORD.findall(text.casefold()):
        if len(word) == 1 or not _CJK.search(word):
            yield word
        else:
            yield from (word[place : place + 2] for place in range(len(word) - 1))


def passages(text: str) -> Iterator[str]:
    """Yield a text in pieces of about the same size, cut between paragraphs where there are any."""
    begun = ""
    for paragraph in text.split("\n\n"):
        if begun and len(begun) + len(paragraph) > PASSAGE:
            yield begun
            begun = ""
        begun = f"{begun}\n\n{paragraph}" if begun else paragraph.strip("\n")
        while len(begun) > 2 * PASSAGE:
            yield begun[:PASSAGE]
            begun = begun[PASSAGE:]
    if begun.strip():
        yield begun


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document."""

    key: str
    text: str
    counts: Counter[str]
    length: int  # in words


class Document:
    """A document cut into passages, which are indexed once."""

    __slots__ = ("passages",)

    def __init__(self, key: str, text: str) -> None:
        self.passages = [_passage(key, each) for each in passages(text)]


def _passage(key: str, text: str) -> Passage:
    counts = Counter(words(f"{key} {text}"))
    return Passage(key, text, counts, counts.total())


class Index:
    """Finds passages by words, the best first (BM25)."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._having: dict[str, list[Passage]] = {}
        self._count = total = 0
        for document in documents:
            for passage in document.passages:
                self._count += 1
                total += passage.length
                for word in passage.counts:
                    self._having.setdefault(word, []).append(passage)
        self._mean = total / self._count if self._count else 1.0

    def search(self, query: str, limit: int) -> list[tuple[str, str]]:
        """Return the keys and texts of the passages that have most of the words."""
        found: dict[int, tuple[float, int, Passage]] = {}
        for word in list(dict.fromkeys(words(query)))[:MAX_WORDS]:
            having = self._having.get(word, [])
            rarity = log(1 + (self._count - len(having) + 0.5) / (len(having) + 0.5))
            for passage in having:
                score, matched, _ = found.get(id(passage), (0.0, 0, passage))
                more = rarity * self._weight(passage, word)
                found[id(passage)] = (score + more, matched + 1, passage)
        ranked = sorted(found.values(), key=_rank)
        return [(passage.key, passage.text) for _, _, passage in ranked[:limit]]

    def _weight(self, passage: Passage, word: str) -> float:
        count = passage.counts[word]
        long = 1 - _LENGTH + _LENGTH * passage.length / self._mean
        return count * (_SATURATION + 1) / (count + _SATURATION * long)


def _rank(found: tuple[float, int, Passage]) -> tuple[int, float, str]:
    score, matched, passage = found
    return -matched, -score, passage.key
