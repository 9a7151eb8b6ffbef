"""The seam of an interrupted answer: where the stored text ends and its continuation begins. Pure.

A model that is asked to continue does not always do so. It repeats the last sentence, or everything from
the beginning; it greets first; it answers anew, in another language, or not at all. What it says is
therefore held back until it is clear how it relates to the stored text, and then shown without what the
reader has seen already. Text goes in as it arrives and comes out as it may be shown; time is passed in.
Nothing that was shown is ever changed: a `Splicer` only decides what comes next.

**How it is decided.** The continuation is compared with the stored text as it arrives, both folded
(`folding`): white space, Markdown, capitals and the encoding of accents do not count, so a repetition is
found in a code block, a list, or any script. The comparison starts at the first character of the
continuation, and again behind every preamble ("Sure, here is the rest:"). Four things can happen:

* It runs into the end of the stored text: a repetition, however long. What follows is the rest: `spliced`.
* It follows the beginning of the stored text and then leaves it: another answer to the same question. If
  nothing of the first one has had an effect, the new one can stand alone: `replace`. Else it begins a new
  paragraph, without the sentences that are the same: `new_paragraph`.
* It has nothing to do with the stored text, and cannot continue it: a refusal, another language, a new
  sentence in the middle of a sentence: `new_paragraph`.
* It has nothing to do with the stored text, as a continuation should: `continue`.

**How long it takes.** Held back are at most `max_characters`, for at most `max_ms` milliseconds; then what
is known decides. A few words are enough if they repeat nothing and continue the sentence in which the stored
text ends: a small letter or a digit begins neither a greeting nor a new answer. Text that repeats what the
reader has before them is not held back in this sense: it is swallowed as it comes, even if the model repeats
ten thousand characters. A model that begins with the tail which it was asked for (`instruct`) is recognised
with the tail's last character. Once it is decided, `Splicer.feed` returns what it is given.

**What cannot be known.** "ha ha" after "ha ha" may be a repetition or the joke. A repetition has to be
`min_overlap` characters long (a third of that in Chinese or Japanese), the whole stored text, or whole
words at its end; anything shorter is taken for new, since a word twice is better than a word lost. If
several overlaps fit, the tail that was asked for wins, then the longest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outlast.chat.seam import words
from outlast.chat.seam.beginnings import (
    MAX_PREAMBLE,
    begins_anew,
    continues_sentence,
    gap,
    is_alike,
    is_another_language,
    is_quoting,
    is_refusal,
    is_unfinished,
    may_become_preamble,
    open_fence,
    paragraph_break,
    preamble_end,
    reopened_fence_end,
)
from outlast.chat.seam.folding import weight
from outlast.chat.seam.instruct import is_negligible
from outlast.chat.seam.overlap import Found, Overlap, Stored

Kind = Literal["continue", "spliced", "new_paragraph", "replace"]
Reason = Literal[
    "direct",  # nothing to remove
    "tail",  # the end of the stored text was repeated
    "start_over",  # all of it was repeated
    "preamble",  # a greeting was removed, and nothing was repeated
    "stopped",  # the model said nothing new
    "restart",  # another answer to the same question
    "anew",  # a new sentence in the middle of a sentence
    "language",
    "refusal",
]

_ANCHORED = 20  # least weight of a repetition behind words that may be a preamble
_MOST_ANCHORS = 4
_CERTAIN = 40  # weight of a common beginning that is no coincidence, wherever the stored text ends
_PLAIN = 24  # characters that show whether they continue a sentence
_SHORT = 60  # weight of a stored text of which little is lost
_OPENING = 400  # folded characters in which another answer resembles the first one


@dataclass(frozen=True, slots=True, kw_only=True)
class SpliceSettings:
    """How a continuation is joined to the stored text."""

    max_characters: int = 200  # held back, that may be new
    max_ms: float = 400
    min_overlap: int = 12  # letters; shorter ones count if they are whole words at the end
    removes_preamble: bool = True  # "Sure, here is the rest:"
    may_replace: bool = True  # False: the stored text has had an effect, or is to stay
    is_prose: bool = True  # False: structured output, which a paragraph or a space would break


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a continuation relates to the stored text, and what that took."""

    kind: Kind
    reason: Reason
    removed: int  # characters of the continuation that are not shown
    held: int  # characters that were held back at most, and not known to be repeated
    waited: float  # milliseconds between the first character and the verdict


class Splicer:
    """Joins one continuation to one stored text.

    ```python
    from outlast.chat.seam.splice import Splicer

    splicer = Splicer("It was late. He had")
    shown = splicer.feed("It was late.", now=0) + splicer.feed(" He had been", now=20)
    assert shown == " been"
    assert splicer.verdict.kind == "spliced"
    assert splicer.feed(" waiting.", now=40) == " waiting."
    ```

    If the verdict is `replace`, what is returned with it is an answer of its own: take the stored text back
    first. Call `tick` at `due`, and `finish` when the model has ended.
    """

    def __init__(self, stored: str, settings: SpliceSettings | None = None) -> None:
        self.verdict: Verdict | None = None
        self._settings = settings or SpliceSettings()
        self._stored = Stored.of(stored)
        self._is_code = open_fence(stored) is not None
        self._is_unfinished = is_unfinished(stored)
        self._least = self._settings.min_overlap
        if self._is_code:
            self._least *= 2  # lines of code recur
        self._held: list[str] = []  # characters of the continuation
        self._preamble = 0  # of these belong to no answer
        self._first: float | None = None
        self._since: float | None = None  # something that may be new is held back
        self._begun: float | None = None  # something has come that is no preamble
        self._most = 0
        self._overlaps = [self._overlap(0)]
        self._behind: Overlap | None = None  # the one behind the preamble

    @property
    def due(self) -> float | None:
        """When `tick` must be called, unless text comes before; None: not at all."""
        if self.verdict is not None or self._since is None:
            return None
        return self._since + self._settings.max_ms

    def feed(self, text: str, now: float) -> str:
        """More of the continuation; returns what may be shown now."""
        if self.verdict is not None:
            return text
        if self._first is None and text:
            self._first = self._since = now
        for place, char in enumerate(text):
            self._take(char)
            shown = self._look(now)
            if shown is not None:
                return shown + text[place + 1 :]
        return self.tick(now)

    def tick(self, now: float) -> str:
        """Time has passed; returns what may be shown now."""
        due = self.due
        return "" if due is None or now < due else self._decide(now, is_end=False)

    def finish(self, now: float) -> str:
        """The model has ended; returns what may be shown now."""
        return "" if self.verdict is not None else self._decide(now, is_end=True)

    # --- what arrives ---

    def _take(self, char: str) -> None:
        self._held.append(char)
        folded, end = self._stored.folding[ord(char)], len(self._held)
        for overlap in self._overlaps:
            overlap.take(char, folded, end)
        if end <= MAX_PREAMBLE and not char.isalnum():
            self._look_for_preamble(char)

    def _look_for_preamble(self, char: str) -> None:
        """Begin another comparison where a preamble may have ended."""
        text, end = "".join(self._held), self._preamble
        if self._settings.removes_preamble:
            end = max(end, preamble_end(text, after_unfinished=self._is_unfinished))
        if char == "\n" and (self._is_code or not self._settings.is_prose):
            end += reopened_fence_end(text[end:])
        if end > self._preamble:
            self._preamble = end
            self._behind = self._replayed(end)
            self._overlaps.append(self._behind)
        elif char in words.COLONS and self._may_be_anchored():
            least = _ANCHORED * (2 if self._is_code else 1)
            place = len(self._held)
            overlap = Overlap(
                self._stored, place, least=least, least_exact=least, allows_words=False
            )
            self._overlaps.append(overlap)

    def _may_be_anchored(self) -> bool:
        """Whether words that end with a colon can be a preamble, if the stored text is repeated behind."""
        return self._settings.removes_preamble and len(self._overlaps) <= _MOST_ANCHORS

    def _overlap(self, offset: int, between: str = "") -> Overlap:
        exact = self._settings.min_overlap
        return Overlap(self._stored, offset, least=self._least, least_exact=exact, between=between)

    def _replayed(self, offset: int) -> Overlap:
        """A comparison that begins behind a preamble."""
        between = "\n" if self._held[offset - 1] == "\n" else " \n"
        overlap = self._overlap(offset, between=between)
        for place in range(offset, len(self._held)):
            char = self._held[place]
            overlap.take(char, self._stored.folding[ord(char)], place + 1)
        return overlap

    # --- what is known ---

    def _look(self, now: float) -> str | None:
        """What may be shown if it can be decided; None: it cannot."""
        for overlap in self._overlaps:
            if self._has_tail(overlap.offset):
                return self._spliced(now, overlap, len(self._held), "")
        best = self._best()
        is_repeating = self._is_repeating()
        held = 0 if is_repeating else len(self._held)
        if best is not None and best.found is not None:
            held = min(held, len(self._held) - best.found.end)
            if not self._may_grow(best) and self._is_after(best.found):
                return self._joined(now, best, best.found)
        is_plain = best is None and self._is_plain()
        if is_plain or held >= self._settings.max_characters:
            return self._decide(now, is_end=False)
        self._most = max(self._most, held)
        self._since = self._held_since(now, is_repeating, is_found=best is not None)
        return None

    def _held_since(self, now: float, is_repeating: bool, is_found: bool) -> float | None:
        """When what may be new began to be held back: what only looked like a repetition was new then."""
        if self._is_only_preamble() or self._may_be_preamble():
            self._begun = None
        elif self._begun is None:
            self._begun = now
        if is_repeating or self._begun is None:
            return None
        if is_found:  # what follows the repetition is new
            return now if self._since is None else self._since
        return self._begun

    def _has_tail(self, offset: int) -> bool:
        """Whether the model has just begun with exactly what it was asked for."""
        tail = self._stored.tail
        if len(self._held) - offset != len(tail) or not tail:
            return False
        return self._held[-1] == tail[-1] and "".join(self._held[offset:]) == tail

    def _best(self) -> Overlap | None:
        found = [each for each in self._overlaps if each.found is not None]
        return max(found, key=lambda each: each.found.length if each.found else 0, default=None)

    def _may_grow(self, best: Overlap) -> bool:
        """Whether a longer overlap is still possible, of which the one that was found is a part."""
        return any(each.is_growing and each.offset <= best.offset for each in self._overlaps)

    def _is_repeating(self) -> bool:
        """Whether what arrives is known to the reader, and can be swallowed for as long as it is."""
        return any(
            each.is_growing and (each.is_expected or each.weight >= self._least)
            for each in self._overlaps
        )

    def _is_plain(self) -> bool:
        """Whether this can only continue the sentence in which the stored text ends: it repeats nothing, and
        begins as neither a preamble nor a sentence does.
        """
        if len(self._held) < _PLAIN or self._held[-1] != " " or not self._is_unfinished:
            return False
        if self._is_code or not self._settings.is_prose:
            return False
        if any(each.is_growing for each in self._overlaps):
            return False
        return continues_sentence(self._stored.text, "".join(self._held))

    def _is_only_preamble(self) -> bool:
        """Whether nothing has come yet that is going to be shown."""
        return self._preamble > 0 and all(char.isspace() for char in self._held[self._preamble :])

    def _may_be_preamble(self) -> bool:
        """Whether what has come begins as a preamble does, and may still become one."""
        if not self._settings.removes_preamble or len(self._held) > MAX_PREAMBLE:
            return False
        return may_become_preamble("".join(self._held[self._preamble :]))

    def _is_after(self, found: Found) -> bool:
        """Whether it is clear what follows the overlap: the stored text may end with white space."""
        rest, folding = self._held[found.end :], self._stored.folding
        if found.unused or len(rest) >= len(self._stored.trailing):
            return True
        return any(folding[ord(char)] for char in rest)

    # --- verdicts ---

    def _decide(self, now: float, *, is_end: bool) -> str:
        best = self._best()
        if best is not None and best.found is not None:
            return self._joined(now, best, best.found)
        overlap = self._behind or self._overlaps[0]
        if is_end and self._ended_early(overlap):
            return self._decided(now, "spliced", "stopped", "")
        body = "".join(self._held[self._preamble :])
        if not body.strip():
            return self._decided(now, "continue", "stopped", body if not self._preamble else "")
        reason = self._objection(overlap, body)
        if reason is None:
            return self._continued(now, body)
        if reason == "restart" and self._settings.may_replace:
            return self._decided(now, "replace", reason, body.lstrip("\n"))
        if not self._settings.is_prose:
            return self._continued(now, body)
        if reason == "restart":
            body = _from_sentence(body, overlap.lead, self._stored)
        text = paragraph_break(self._stored.text) + body.lstrip()
        return self._decided(now, "new_paragraph", reason, text)

    def _ended_early(self, overlap: Overlap) -> bool:
        """Whether the model repeated what was expected, and ended before it came to anything new."""
        is_enough = overlap.weight >= self._least
        return overlap.is_growing and overlap.is_expected and is_enough

    def _objection(self, overlap: Overlap, body: str) -> Reason | None:
        """Why this cannot continue the stored text; None: it can."""
        stored = self._stored
        lead = weight(stored.folded[: overlap.lead])
        if lead >= _CERTAIN or is_negligible(stored.text):
            return "restart"
        if self._is_code or not self._settings.is_prose or stored.text.endswith(("`", "~")):
            return None
        if lead >= self._settings.min_overlap and _begin_alike(stored.text, body):
            return "restart" if self._is_unfinished else "anew"
        if is_refusal(body) and not is_quoting(stored.text) and not is_refusal(stored.text):
            return "refusal"
        if is_another_language(stored.text, body):
            return "language"
        if not begins_anew(stored.text, body):
            return None
        is_short = weight(stored.folded) < _SHORT
        folded = body.translate(stored.folding)
        is_same = is_short or is_alike(folded, stored.folded[:_OPENING])
        return "restart" if is_same else "anew"

    def _continued(self, now: float, body: str) -> str:
        stored = self._stored.text
        if self._preamble:
            body = _without_separator(body, stored)
        between = gap(stored, body) if self._settings.is_prose else ""
        kind: Kind = "spliced" if self._preamble else "continue"
        reason: Reason = "preamble" if self._preamble else "direct"
        return self._decided(now, kind, reason, between + body, added=len(between))

    def _joined(self, now: float, overlap: Overlap, found: Found) -> str:
        rest = "".join(self._held[found.end :])
        if not found.unused:
            rest = _after_trailing(rest, self._stored)
        return self._spliced(now, overlap, found.end, found.unused, rest)

    def _spliced(
        self, now: float, overlap: Overlap, end: int, unused: str, rest: str | None = None
    ) -> str:
        rest = "".join(self._held[end:]) if rest is None else rest
        is_all = overlap.lead == len(self._stored.folded) and bool(overlap.lead)
        reason: Reason = "start_over" if is_all else "tail"
        return self._decided(now, "spliced", reason, unused + rest, added=len(unused))

    def _decided(
        self, now: float, kind: Kind, reason: Reason, shown: str, *, added: int = 0
    ) -> str:
        removed = max(0, len(self._held) - len(shown) + added)
        waited = 0.0 if self._first is None else now - self._first
        self.verdict = Verdict(kind, reason, removed, self._most, waited)
        self._held, self._overlaps, self._since = [], [], None
        return shown


def _begin_alike(stored: str, body: str) -> bool:
    """Whether both begin with the same character: words that recur in a sentence follow a space."""
    return body.lstrip("\n")[:1] == stored.lstrip()[:1]


def _after_trailing(rest: str, stored: Stored) -> str:
    """What follows a repetition, without what the stored text ends with and folding drops.

    Exactly repeated it is just taken away. Else white space counts as repeated if there is no more of it
    than was stored, and marks if they are the same.
    """
    trailing = stored.trailing
    if rest.startswith(trailing):
        return rest[len(trailing) :]
    place = missing = 0
    for char in trailing:
        is_same = rest[place : place + 1] == char
        place += is_same
        missing += char.isspace() and not is_same
    rest = rest[place:]
    text = rest.lstrip()
    blank = rest[: len(rest) - len(text)]
    has_more = blank.count("\n") > trailing.count("\n")
    return rest if has_more or not missing else text


def _without_separator(body: str, stored: str) -> str:
    """The rest behind a preamble: without the line ends between both, or a space that is stored already."""
    if body.lstrip(" \t").startswith("\n"):
        body = body.lstrip(" \t")
        return body[2:] if body.startswith("\n\n") else body[1:]
    return body[1:] if body.startswith(" ") and stored[-1:].isspace() else body


def _from_sentence(body: str, lead: int, stored: Stored) -> str:
    """Another answer from the sentence on in which it leaves the stored one."""
    place = start = 0
    while lead > 0 and place < len(body):
        lead -= len(stored.folding[ord(body[place])])
        place += 1
        is_end = body[place - 1] in ".!?" and body[place : place + 1].isspace()
        if is_end or body[place - 1] in f"\n{words.FULL_STOPS}":
            start = place
    return body[start:]
