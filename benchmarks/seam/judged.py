"""What a reader had seen of an answer, and what is there in the end."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.seam.provider import Conversation

FENCE = re.compile(r"^(?:```\w*\s*)+")  # a code block is closed, or opened again
LEAST_REPEATED = 20  # characters that a real model does not repeat by chance


@dataclass
class Reading:
    """What became of one conversation."""

    seen: str = ""  # when the process died
    text: str = ""  # as it is shown after that
    is_replaced: bool = False  # what was seen was taken back, and the reader was told
    is_paragraph: bool = False
    shown_at: float | None = None  # when the first character was shown that had not been seen
    final: str | None = None  # None: it did not end


@dataclass(frozen=True)
class Judgement:
    """One seam."""

    is_perfect: bool
    twice: int  # characters that are there once more than they should be
    lost: int


def judge(one: Conversation, reading: Reading) -> Judgement:
    """Compare. A replaced answer has to be the new one, any other one what was seen and the rest."""
    final = reading.final or ""
    if one.behave is None:
        return _judge_real(one, reading, final)
    is_asked = one.handed is not None
    if one.is_wrong and is_asked:
        if reading.is_replaced:
            return Judgement(False, *difference(one.said.strip(), final.strip()))
        return _judge_kept(one, reading, final)
    expected = reading.seen + one.rest if is_asked and not one.rest else one.whole
    return Judgement(final == expected and not reading.is_replaced, *difference(expected, final))


def _judge_kept(one: Conversation, reading: Reading, final: str) -> Judgement:
    """Another answer behind the first one: what both begin with may be left out."""
    if not final.startswith(reading.seen):
        return Judgement(False, *difference(reading.seen + one.said, final))
    added, said = (FENCE.sub("", text.strip()) for text in (final[len(reading.seen) :], one.said))
    if not said.endswith(added):
        return Judgement(False, *difference(said, added))
    removed, common = len(said) - len(added), common_start(reading.seen, said)
    return Judgement(False, max(0, common - removed), max(0, removed - common))


def common_start(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _judge_real(one: Conversation, reading: Reading, final: str) -> Judgement:
    """Nobody knows what a real model should have said, but for the whole answer."""
    if reading.is_replaced or final == one.whole:
        return Judgement(final == one.whole and not reading.is_replaced, 0, 0)
    if not final.startswith(reading.seen):
        return Judgement(False, 0, difference(reading.seen, final)[1])
    added = final[len(reading.seen) :]
    found = SequenceMatcher(None, reading.seen, added, autojunk=False).find_longest_match()
    return Judgement(False, found.size if found.size >= LEAST_REPEATED else 0, 0)


def difference(expected: str, found: str) -> tuple[int, int]:
    """How many characters are there too often, and how many are missing."""
    if expected == found:
        return 0, 0
    matcher = SequenceMatcher(None, expected, found, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    return len(found) - same, len(expected) - same


def measured(known: Sequence[Conversation], readings: Sequence[Reading]) -> Metrics:
    """Shares of the answers, sums of the characters, and how long new text was held back."""
    pairs = list(zip(known, readings, strict=True))
    ended = [(one, reading) for one, reading in pairs if reading.final is not None]
    judged = [judge(one, reading) for one, reading in ended]
    held = [
        max(0.0, (reading.shown_at - one.new_at) * 1e3)
        for one, reading in ended
        if reading.shown_at is not None and one.new_at is not None
    ]

    def share(count: int) -> float:
        return 100 * count / len(pairs)

    metrics = {
        "answers": float(len(pairs)),
        "perfect_pct": share(sum(each.is_perfect for each in judged)),
        "replaced_pct": share(sum(reading.is_replaced for reading in readings)),
        "paragraph_pct": share(sum(reading.is_paragraph for reading in readings)),
        "twice": float(sum(each.twice for each in judged)),
        "lost": float(sum(each.lost for each in judged)),
        "stuck": float(len(pairs) - len(ended)),
    }
    if held:
        metrics |= {"held_ms": statistics.median(held), "held_most_ms": max(held)}
    return metrics
