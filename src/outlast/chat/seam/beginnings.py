"""What a continuation begins with when it does not simply continue. Pure.

Asked to continue, models greet first, apologise, answer in another language, or begin a new answer. Each
function here recognises one of these by its first words, and is conservative: a wrong *no* leaves a greeting
in the message, a wrong *yes* would take words away. So a greeting has to talk about continuing, and the
languages of two texts differ only if both are certain.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from outlast.chat.seam import words
from outlast.chat.seam.folding import is_wide
from outlast.chat.seam.words import alternatives

MAX_PREAMBLE = 160  # characters

_YES = alternatives(words.YES)
_OPENER = alternatives(words.OPENERS)
_CONTINUING = alternatives(words.CONTINUING)
_GREETING = re.compile(rf"(?:{_YES}|{_OPENER}|{alternatives(words.SORRY)})", re.IGNORECASE)
_YES_FIRST = re.compile(
    rf"[*_#>]*(?:{_YES})(?=[\s:：{words.COMMAS}继繼続계이])[\s{words.COMMAS}]*", re.IGNORECASE
)
_ABOUT = rf"(?=[^\n:：]*?(?:{_CONTINUING}))[^\n:：.!。！…]{{1,110}}"
_ENDED = r"(?:[:：]|(?=\n))[*_)\]）]*"
_AFTER_YES = re.compile(
    rf"[*_(（\[]*{_ABOUT}(?:{_ENDED}|[。！]|[.!…]+(?=[\s*_)\]]))", re.IGNORECASE
)
_ALONE = re.compile(  # a line of its own without a colon may be a heading, unless it is in brackets
    rf"\s*(?:[*_#>(（\[-]*(?=(?:{_OPENER})){_ABOUT}[:：][*_)\]）]*"
    rf"|[*_]*[(（\[][*_]*(?=(?:{_OPENER})){_ABOUT}(?=\n))",
    re.IGNORECASE,
)
_LONGEST_SENTENCE = 110  # characters of a sentence about continuing
_MAYBE = re.compile(rf"[*_#>(（\[-]*(?:{_YES}|{_OPENER})[^\n:：]*\Z", re.IGNORECASE)
_RULE = re.compile(r"\s*\n\s*(?:-{3,}|\*{3,}|_{3,})[ \t]*(?=\n)")

_SORRY = re.compile(rf"\W*(?:{alternatives(words.SORRY)})", re.IGNORECASE)
_UNABLE = re.compile(alternatives(words.UNABLE), re.IGNORECASE)
_SAMPLE_OF_REFUSAL = 200  # characters

_BLOCK = re.compile(r"(?:#{1,6} (?![a-z])|[-*+•] |\d{1,3}[.)] |```|~~~|\|)")
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\d{1,3}[.)]) ")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})([^`\n]*)$")
_REOPENED = re.compile(r"\s*(?:`{3,}|~{3,})[\w+#.-]+[ \t]*\n")

_FUNCTION_WORDS = {name: frozenset(own.split()) for name, own in words.FUNCTION_WORDS.items()}
_WORD = re.compile(r"[^\W\d_]+")
_LEAST_WORDS = 6
_LEAST_LETTERS = 12
_SAMPLE = 1500  # characters of a text that tell its language
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_GRAM = 5
_ALIKE = 0.5


# --- the stored text -----------------------------------------------------------------------------


def is_unfinished(text: str) -> bool:
    """Whether it ends in the middle of a sentence, as far as one can see."""
    kept = text.rstrip()
    if not kept or "\n" in text[len(kept) :]:
        return False
    said = kept.rstrip(words.CLOSING) or kept
    return said[-1] not in words.SENTENCE_ENDS


def open_fence(text: str) -> str | None:
    """The fence of the code block in which a text ends; None: it ends in none."""
    fence: str | None = None
    if "```" not in text and "~~~" not in text:
        return None
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found is None:
            continue
        if fence is None:
            fence = found[1]
        elif found[1].startswith(fence) and not found[2].strip():
            fence = None
    return fence


def paragraph_break(text: str) -> str:
    """What has to follow a text so that a new paragraph can begin."""
    fence = open_fence(text)
    if fence is not None:
        return f"{'' if text.endswith(chr(10)) else chr(10)}{fence}\n\n"
    if not text.strip() or text.endswith("\n\n"):
        return ""
    return "\n" if text.endswith("\n") else "\n\n"


def gap(text: str, rest: str) -> str:
    """What a model left out between a text and its rest: the space between two sentences, or the end of a
    line between two items of a list.
    """
    if not text or not rest or text[-1].isspace() or open_fence(text) is not None:
        return ""
    if _LIST_ITEM.match(rest) and _LIST_ITEM.match(text.rpartition("\n")[2]):
        return "\n"
    ends_sentence = len(text) > 2 and text[-1] in ".!?" and text[-3:-1].islower()
    return " " if ends_sentence and rest[0].isupper() else ""


# --- the continuation ----------------------------------------------------------------------------


def preamble_end(text: str, *, after_unfinished: bool) -> int:
    """How many characters of a text are sentences about continuing ("Sure, here is the rest:"); 0: none.

    A bare "Sure!" on a line of its own counts where the stored text ends `after_unfinished` sentences: no
    sentence continues with it.
    """
    first = text[:1]
    if first.isspace() or first.islower():
        return 0
    yes = _YES_FIRST.match(text)
    place = 0 if yes is None else yes.end()
    about = (_ALONE if yes is None else _AFTER_YES).match(text, place)
    if about is not None:
        place = about.end()
        more = _ALONE.match(text, place)
        place = place if more is None else more.end()
    elif yes is None or "\n" not in yes[0] or not after_unfinished:
        return 0
    rule = _RULE.match(text, place)
    return place if rule is None else rule.end()


def may_become_preamble(text: str) -> bool:
    """Whether the first words of a text are those of a preamble, whose end has not come yet."""
    said = text.lstrip()
    if not said or said[0].islower() or len(said) > _LONGEST_SENTENCE:
        return False
    return _MAYBE.match(said) is not None


def reopened_fence_end(text: str) -> int:
    """How many characters open a code block in a named language; 0: none."""
    found = _REOPENED.match(text)
    return 0 if found is None else found.end()


def is_refusal(text: str) -> bool:
    """Whether somebody says sorry, and that they cannot."""
    return (
        _SORRY.match(text) is not None and _UNABLE.search(text, 0, _SAMPLE_OF_REFUSAL) is not None
    )


def is_quoting(text: str) -> bool:
    """Whether a text ends with a quotation mark that opens."""
    return text.endswith(words.OPENING_QUOTES) and not text[-2:-1].isalnum()


def begins_anew(text: str, rest: str) -> bool:
    """Whether `rest` begins as only a new sentence or block can, in the middle of a sentence of `text`."""
    if not is_unfinished(text) or not (text[-1].isalnum() or text[-1] in words.PAUSES):
        return False
    if _BLOCK.match(rest):
        return not (_LIST_ITEM.match(rest) and gap(text, rest))
    return rest[:1].isupper() and (rest[1:2].islower() or rest[1:2] in words.AFTER_I)


def continues_sentence(text: str, rest: str) -> bool:
    """Whether `rest` begins as the middle of a sentence does: with a small letter or a digit.

    Not if its first words could be a greeting, a block of Markdown, or those of another language.
    """
    said = rest.lstrip(" ")
    if not (said[:1].islower() or said[:1].isdigit()) or _BLOCK.match(said):
        return False
    if _GREETING.match(said) is not None or begins_anew(text, rest):
        return False
    language = _language(text[-_SAMPLE:])
    if language is None:
        return True
    small_words = _FUNCTION_WORDS[language]
    return any(word.casefold() in small_words for word in _WORD.findall(said)[:-1])


def is_alike(one: str, other: str) -> bool:
    """Whether two folded texts share much of their wording, as two answers to one question do."""
    grams = {one[place : place + _GRAM] for place in range(len(one) - _GRAM + 1)}
    if len(grams) < 4 * _GRAM:
        return False
    shared = sum(gram in other for gram in grams)
    return shared >= _ALIKE * len(grams)


def is_another_language(text: str, rest: str) -> bool:
    """Whether `rest` is certainly written in another script, or another language, than `text`."""
    text, rest = _CODE.sub("", text)[-_SAMPLE:], _CODE.sub("", rest)
    scripts = _script(text), _script(rest)
    if None in scripts:
        return False
    if scripts[0] != scripts[1]:
        return True
    languages = _language(text), _language(rest)
    return None not in languages and languages[0] != languages[1]


def _script(text: str) -> str | None:
    """The script of nearly all letters; None: there are too few, or of several."""
    letters = [char for char in text if char.isalpha()]
    scripts = Counter(map(_script_of, letters))
    if sum(3 if is_wide(char) else 1 for char in letters) < _LEAST_LETTERS:
        return None
    if scripts["KANA"]:  # Japanese: both, in any proportion
        return "KANA" if scripts["KANA"] + scripts["CJK"] > 0.8 * len(letters) else None
    name, count = scripts.most_common(1)[0]
    if name == "CJK" and len(letters) < 30:
        return None  # a few words of Japanese need no kana
    return name if count > 0.8 * len(letters) else None


def _script_of(letter: str) -> str:
    name = unicodedata.name(letter, "?").split(" ", 1)[0]
    return "KANA" if name in ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA") else name


def _language(text: str) -> str | None:
    """The language whose small words stand in a text; None: there are too few, or of several."""
    said = [word.casefold() for word in _WORD.findall(text)]
    found = Counter(
        {name: sum(word in own for word in said) for name, own in _FUNCTION_WORDS.items()}
    )
    (name, count), (_, second) = found.most_common(2)
    return name if count >= _LEAST_WORDS and count >= 2 * second else None
