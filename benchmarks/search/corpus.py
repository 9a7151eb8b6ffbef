"""Messages of invented words, as frequent as words are (Zipf), and queries for them: always the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "ing")]
VOCABULARY = 20_000


class Corpus:
    """Texts of 20 to 120 words."""

    def __init__(self) -> None:
        self._random = random.Random(19)
        known: dict[str, None] = {}
        while len(known) < VOCABULARY:
            known["".join(self._random.choices(SYLLABLES, k=self._random.randint(1, 4)))] = None
        self._words = list(known)
        self._weights = list(accumulate(1 / (rank + 3) for rank in range(VOCABULARY)))
        self._phrases: list[str] = []

    def texts(self, count: int) -> Iterator[str]:
        """The texts; some of their phrases are queries later."""
        for number in range(count):
            length = self._random.randint(20, 120)
            words = self._random.choices(self._words, cum_weights=self._weights, k=length)
            if number % max(1, count // 500) == 0:
                self._phrases.append(f'"{words[3]} {words[4]}"')
            yield " ".join(words)

    def queries(self, count: int) -> list[str]:
        """A fifth each: a rare word, a common one, two words, a phrase, a prefix."""
        pick = self._random
        kinds = (
            lambda: pick.choice(self._words[2_000:]),
            lambda: pick.choice(self._words[20:500]),
            lambda: f"{pick.choice(self._words[20:500])} {pick.choice(self._words[100:2_000])}",
            lambda: pick.choice(self._phrases),
            lambda: f"{pick.choice(self._words[500:])[:5]}*",
        )
        return [kinds[number % len(kinds)]() for number in range(count)]
