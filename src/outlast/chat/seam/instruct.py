"""The instruction to continue an interrupted answer, for models that cannot be handed its beginning. Pure.

A model that is only told to continue has to guess where: in the middle of a word, after which space? So the
end of the stored text is quoted, and the model is asked to begin with exactly that. `splice` knows the same
quotation, and takes it away. A text without a letter is not continued but written again. The
instruction is for one request and never stored.
"""

from __future__ import annotations

import unicodedata

from outlast.chat.seam.folding import Folding, weight

SHORTEST_TAIL = 60  # characters, if the text has as many
LONGEST_TAIL = 160
_WORD = 40  # characters in which a word begins, in scripts that put spaces between words

_LEAST = 1  # letters that are worth continuing
_SAMPLE = 400  # characters among which they must be

_INTERRUPTED = "Your last answer was interrupted."

_INSTRUCTION = (
    _INTERRUPTED
    + """ Its end is quoted between the tags:

<tail>{tail}</tail>

Begin your reply with exactly the text between the tags, character by character, even if it begins or ends \
in the middle of a sentence or a word. Go straight on from there to the end of the answer: same language, \
same format, same numbering. Write no greeting, no comment, no tags, and nothing that comes before the \
quoted text."""
)

_FROM_BEGINNING = _INTERRUPTED + " Write it again from its beginning, without a comment."


def continue_instruction(text: str) -> str:
    """What to ask a model that has said `text` and was interrupted.

    ```python
    from outlast.chat.seam.instruct import continue_instruction

    assert "<tail>He had</tail>" in continue_instruction("He had")
    ```
    """
    return _FROM_BEGINNING if is_negligible(text) else _INSTRUCTION.format(tail=tail_of(text))


def is_continue_instruction(text: object) -> bool:
    """Whether this is such an instruction, and not something that a user said."""
    head = _INSTRUCTION.partition("{tail}")[0]
    return isinstance(text, str) and (text == _FROM_BEGINNING or text.startswith(head))


def is_begin_again(text: object) -> bool:
    """Whether this instruction asks for the whole answer once more."""
    return text == _FROM_BEGINNING


def is_negligible(text: str) -> bool:
    """Whether a text says too little to be continued: the mark that begins a list, say."""
    return weight(text[:_SAMPLE].translate(Folding())) < _LEAST


def tail_of(text: str) -> str:
    """The end of a text, from the beginning of a word on, and if possible long enough to occur once."""
    length = SHORTEST_TAIL
    while True:
        tail = text[_word_start(text, len(text) - length) :]
        is_unique = text.find(tail) == len(text) - len(tail)
        if is_unique or len(tail) == len(text) or length >= LONGEST_TAIL - _WORD:
            return tail
        length += 20


def _word_start(text: str, place: int) -> int:
    """The last place up to `place` where a word begins, or a character that can stand alone."""
    if place <= 0:
        return 0
    for start in range(place, max(0, place - _WORD), -1):
        if text[start - 1].isspace() and not text[start].isspace():
            return start
    while place > 0 and (_attaches(text[place]) or text[place - 1] == "\u200d"):
        place -= 1
    return place


def _attaches(char: str) -> bool:
    """Whether a character only changes the one before it."""
    return char == "\u200d" or unicodedata.category(char).startswith("M")
