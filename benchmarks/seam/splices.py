"""outlast's splicer alone: random answers, cut at random places. No host, no real clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from benchmarks.seam.judged import Reading, judge
from benchmarks.seam.misbehaviours import Misbehaviour, case, pieces
from benchmarks.seam.provider import PIECE, Conversation

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place
    from outlast.chat.seam.splice import Verdict


class Shown:
    """What is shown of one continuation, and how long the oldest character of it was held back."""

    def __init__(self, stored: str) -> None:
        from outlast.chat.seam.splice import Splicer

        self._splicer = Splicer(stored)
        self._arrived: list[float] = []  # of each character
        self.text = ""
        self.held_ms = 0.0

    def feed(self, piece: str, now: float) -> None:
        due = self._splicer.due
        if due is not None and now >= due:
            self._show(self._splicer.tick(due), due)
        self._arrived += [now] * len(piece)
        self._show(self._splicer.feed(piece, now), now)

    def finish(self, now: float) -> Verdict:
        self._show(self._splicer.finish(now), now)
        assert self._splicer.verdict is not None
        return self._splicer.verdict

    def _show(self, text: str, now: float) -> None:
        if text:
            words = text.lstrip() or text  # white space is nothing to wait for
            oldest = self._arrived[max(0, len(self._arrived) - len(words))]
            self.held_ms = max(self.held_ms, now - oldest)
            self.text += text


def arriving(chance: random.Random, said: str, per_second: int) -> Iterator[tuple[str, float]]:
    """Pieces, and when they come; `per_second` is 0 for a provider that says all at once."""
    if not per_second:
        yield from ((piece, 0.0) for piece in pieces(chance, said))
        return
    now = 0.0
    for place in range(0, len(said), PIECE):
        now += chance.uniform(0.5, 1.5) * 1000 / per_second
        yield said[place : place + PIECE], now


def splices(behaving: Sequence[Misbehaviour], per_second: int) -> Callable[[Place, int], Metrics]:
    """A job's function: n answers in all, of models that behave like this and say so many pieces a second."""

    def run(_: Place, n: int) -> Metrics:
        chance, kinds, held = random.Random(1), [], 0
        perfect = twice = lost = 0
        held_ms: list[float] = []
        for i in range(n):
            behave = behaving[i % len(behaving)]
            one = case(chance, behave)
            shown, now = Shown(one.stored), 0.0
            for piece, now in arriving(chance, one.said, per_second):
                shown.feed(piece, now)
            verdict = shown.finish(now)
            judged = judge(*as_read(one.stored, one.rest, one.said, behave, shown.text, verdict))
            perfect, twice, lost = (
                perfect + judged.is_perfect,
                twice + judged.twice,
                lost + judged.lost,
            )
            kinds.append(verdict.kind)
            held = max(held, verdict.held)
            held_ms.append(shown.held_ms)
        return {
            "answers": float(n),
            "perfect_pct": 100 * perfect / n,
            "replaced_pct": 100 * kinds.count("replace") / n,
            "paragraph_pct": 100 * kinds.count("new_paragraph") / n,
            "twice": float(twice),
            "lost": float(lost),
            "stuck": 0.0,
            "held_ms": sorted(held_ms)[n // 2],
            "held_most_ms": round(max(held_ms), 3),
            "held_characters": float(held),
        }

    return run


def as_read(
    stored: str, rest: str, said: str, behave: Misbehaviour, shown: str, verdict: Verdict
) -> tuple[Conversation, Reading]:
    """The same as a conversation that somebody has read."""
    one = Conversation("c", stored + rest, [stored], behave, handed=stored, said=said, rest=rest)
    is_replaced = verdict.kind == "replace"
    final = shown if is_replaced else stored + shown
    return one, Reading(stored, final, is_replaced, final=final)
