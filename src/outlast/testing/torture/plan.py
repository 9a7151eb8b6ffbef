"""What one turn is to say and to do, and what of that is left. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Collection
from dataclasses import dataclass

TOOLS = ("once", "idempotent", "read")
ASKS = "asks"  # the tool that needs an approval
_PROMPT = re.compile(r"turn (\S+) every (\d+)ms: (.+)")

Step = int | tuple[str, ...]  # so many words, or these tools at once


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn. Its words are numbered from 1, its calls by their place.

    ```python
    from outlast.testing.torture.plan import Plan

    plan = Plan("a1", (2, ("once",), 1))
    assert plan.rest(0, ()) == (["a1.1 ", "a1.2 "], [("once", "a1#1.0")])
    assert plan.rest(1, ()) == (["a1.2 "], [("once", "a1#1.0")])
    assert plan.rest(2, {"a1#1.0"}) == (["a1.3 "], [])
    assert Plan.of(plan.prompt) == plan
    ```
    """

    label: str
    steps: tuple[Step, ...]
    every: int = 10  # milliseconds between two words

    @property
    def prompt(self) -> str:
        """The user's message that asks for it."""
        steps = (f"say {s}" if isinstance(s, int) else f"call {' '.join(s)}" for s in self.steps)
        return f"turn {self.label} every {self.every}ms: {', '.join(steps)}"

    @classmethod
    def of(cls, prompt: str) -> Plan | None:
        found = _PROMPT.fullmatch(prompt)
        if found is None:
            return None
        steps: list[Step] = []
        for text in found[3].split(", "):
            kind, *rest = text.split(" ")
            steps.append(int(rest[0]) if kind == "say" else tuple(rest))
        return cls(found[1], tuple(steps), int(found[2]))

    @property
    def words(self) -> int:
        return sum(step for step in self.steps if isinstance(step, int))

    @property
    def duration(self) -> float:
        """Seconds that its words take, if nothing holds them up."""
        return self.words * self.every / 1000

    @property
    def asks(self) -> bool:
        """Whether it needs an approval."""
        return any(ASKS in step for step in self.steps if isinstance(step, tuple))

    def word(self, number: int) -> str:
        return f"{self.label}.{number} "

    def text(self, words: int | None = None) -> str:
        """The first words, or all."""
        count = self.words if words is None else words
        return "".join(self.word(number) for number in range(1, count + 1))

    def rest(self, said: int, answered: Collection[str]) -> tuple[list[str], list[tuple[str, str]]]:
        """What comes next: words up to the next calls, and these as tool and label."""
        words: list[str] = []
        place = 0
        for number, step in enumerate(self.steps):
            if isinstance(step, int):
                words += [self.word(n) for n in range(max(place, said) + 1, place + step + 1)]
                place += step
                continue
            labels = [(tool, f"{self.label}#{number}.{n}") for n, tool in enumerate(step)]
            calls = [each for each in labels if each[1] not in answered]
            if calls:
                return words, calls
        return words, []


def words_in(text: str, label: str) -> list[int]:
    """The numbers of the words of a turn, as they stand in a text."""
    return [int(number) for number in re.findall(rf"(?<!\S){re.escape(label)}\.(\d+)(?!\S)", text)]


def misplaced(numbers: list[int]) -> str | None:
    """What is wrong with words that should be 1, 2, 3, …"""
    for place, number in enumerate(numbers, 1):
        if number != place:
            kind = "twice" if number in numbers[: place - 1] else "after a gap"
            return f"word {number} stands at place {place}, {kind}"
    return None


def turn_of(label: str) -> str:
    """The turn that a call belongs to."""
    return label.partition("#")[0]


def random_plan(label: str, chance: random.Random, *, may_ask: bool = True) -> Plan:
    """A turn of some kind."""
    steps: list[Step] = [chance.randint(3, 30)]
    for _ in range(chance.choices((0, 1, 2, 3), weights=(4, 4, 2, 1))[0]):
        tools = chance.choices(TOOLS, weights=(5, 2, 2), k=chance.choice((1, 1, 1, 2)))
        steps += [tuple(tools), chance.randint(1, 20)]
    if may_ask and chance.random() < 0.25:
        steps += [(ASKS,), chance.randint(1, 15)]
    return Plan(label, tuple(steps), chance.choice((5, 15, 30)))
