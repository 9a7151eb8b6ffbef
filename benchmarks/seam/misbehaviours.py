"""Random answers in many scripts, and what models make of the request to continue one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast.chat.seam.splice import SpliceSettings, Verdict

_ENGLISH = """the rain fell softly on an old town while people hurried home along narrow streets and
thought about dinner some of them stopped at bakery where warm bread was waiting others
went straight nobody noticed that clock above square had not moved for hours because
everyone looked down at puddles which reflected lamps windows roofs towers bridges boats
harbour ships sailors letters stories candles kitchens gardens apple trees swallows
autumn fog morning silver coins markets baskets pepper cinnamon violins songs laughter
children"""
_GERMAN = """der Regen fiel leise auf die alte Stadt während Menschen durch enge Gassen nach Hause
eilten und an das Abendessen dachten einige hielten vor einer Bäckerei in welcher warmes
Brot wartete andere gingen weiter niemand bemerkte dass eine Uhr über dem Platz seit
Stunden stillstand weil alle auf Pfützen schauten worin sich Laternen Fenster Dächer
Türme Brücken Boote Häfen Matrosen Briefe Geschichten Kerzen spiegelten"""
_RUSSIAN = """дождь тихо падал на старый город пока люди спешили домой по узким улицам и думали об
ужине некоторые остановились у пекарни где ждал тёплый хлеб другие шли дальше никто не
заметил что часы над площадью давно стоят потому все смотрели вниз лужи отражали фонари
окна крыши башни мосты лодки гавань письма"""
_ARABIC = """كان المطر يهطل بهدوء على المدينة القديمة بينما أسرع الناس إلى بيوتهم عبر الشوارع الضيقة
وهم يفكرون في العشاء توقف بعضهم عند المخبز حيث انتظر الخبز الدافئ ومضى آخرون لم يلاحظ
أحد أن ساعة الميدان توقفت منذ ساعات"""
_HEBREW = """הגשם ירד בשקט על העיר העתיקה בזמן שאנשים מיהרו הביתה ברחובות צרים וחשבו ארוחת ערב כמה
מהם עצרו ליד המאפייה שבה חיכה לחם חם אחרים המשיכו ישר איש לא הבחין שהשעון מעל הכיכר עמד
כבר שעות כי כולם הביטו למטה"""
_HINDI = """बारिश धीरे पुराने शहर पर गिर रही थी जबकि लोग संकरी गलियों से घर की ओर भाग रहे थे और रात
के खाने बारे में सोच कुछ बेकरी रुके जहाँ गरम रोटी इंतज़ार बाकी सीधे आगे किसी ने नहीं
देखा कि चौक घड़ी घंटों बंद पड़ी"""
_KOREAN = """비가 오래된 마을 위로 조용히 내리는 동안 사람들은 좁은 골목을 따라 집으로 서둘러 가며
저녁을 생각했다 몇몇은 따뜻한 빵이 기다리는 빵집 앞에서 멈췄고 다른
이들은 계속 걸었다 아무도 광장 시계가 멈춘 것을 몰랐다"""
_HAN = """的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种
面而方后多定行学法所民得经十三之进着等部度家电力里如水化高自二理起小物现实加量都两体制机当使点从业本
去把性好应开它合 还因由其些然前外天政四日那社义事平形相全表间样与关各重新线内数正心反你明看原又么利
比或但质气第向道命此变条只没结解问意"""
_KANA = (
    "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん"
)
_EMOJI = ("👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "e\u0301", "a\u0308o", "😀", "ñ", "☕️", "Å", "ﬁ")

_WORDS = {
    "en": _ENGLISH.split(),
    "de": _GERMAN.split(),
    "ru": _RUSSIAN.split(),
    "ar": _ARABIC.split(),
    "he": _HEBREW.split(),
    "hi": _HINDI.split(),
    "ko": _KOREAN.split(),
}
SCRIPTS = (*_WORDS, "zh", "ja")

GREETINGS = (
    "Sure, continuing where I left off:\n\n",
    "Certainly! Here is the continuation:\n\n",
    "Of course. Here's the rest of the answer:\n\n",
    "Okay, let me continue.\n\n",
    "**Continued:**\n\n",
    "Natürlich, hier ist die Fortsetzung:\n\n",
    "Bien sûr ! Voici la suite :\n\n",
    "Por supuesto, continúo:\n\n",
    "好的，继续：\n\n",
    "もちろんです。続きです：\n\n",
    "물론입니다. 계속하겠습니다:\n\n",
    "Конечно, продолжаю:\n\n",
    "بالتأكيد، إليك بقية الإجابة:\n\n",
)


def prose(chance: random.Random, script: str, length: int) -> str:
    """About so many characters of text without sense."""
    if script in ("zh", "ja"):
        return _unspaced(chance, script, length)
    said: list[str] = []
    begins, size = True, 0
    while size < length:
        word = chance.choice(_WORDS[script])
        if said and word == said[-1].lower():
            continue  # nobody can tell a doubled word from a repeated one
        word = word[0].upper() + word[1:] if begins else word
        begins = chance.random() < 0.1
        end = chance.choice(".!?") if begins else "," if chance.random() < 0.08 else ""
        if chance.random() < 0.03:
            end += f" {chance.choice(_EMOJI)}"
        said.append(word + end)
        size += len(said[-1]) + 1
    return " ".join(said)


def _unspaced(chance: random.Random, script: str, length: int) -> str:
    han, said = "".join(_HAN.split()), ""
    while len(said) < length:
        said += "".join(chance.sample(han, chance.randint(1, 3)))
        if script == "ja":
            said += "".join(chance.sample(_KANA, chance.randint(1, 4)))
        if chance.random() < 0.2:
            said += chance.choice("，。、！？")
    return said


def markdown(chance: random.Random, script: str, length: int) -> str:
    """The same, with headings, lists, code, tables, quotations and emphasis."""
    blocks: list[str] = []
    while sum(map(len, blocks)) < length:
        blocks.append(chance.choice(_BLOCKS)(chance, script))
    return "\n\n".join(blocks)


def _paragraph(chance: random.Random, script: str) -> str:
    return prose(chance, script, chance.randint(60, 300))


def _heading(chance: random.Random, script: str) -> str:
    return f"{'#' * chance.randint(1, 4)} {prose(chance, script, chance.randint(10, 30))}"


def _bullets(chance: random.Random, script: str) -> str:
    mark, count = chance.choice("-*+"), chance.randint(2, 5)
    lines = [f"{mark} {prose(chance, script, chance.randint(10, 60))}" for _ in range(count)]
    return "\n".join(lines)


def _numbers(chance: random.Random, script: str) -> str:
    items = [prose(chance, script, chance.randint(10, 60)) for _ in range(chance.randint(2, 5))]
    return "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1))


def _code(chance: random.Random, script: str) -> str:
    names = chance.sample(_WORDS["en"], 12)
    lines = [
        f"{' ' * chance.choice((0, 4, 8))}{one} = {other}({chance.randint(0, 99)}) - {chance.random():.3f}"
        for one, other in zip(names[::2], names[1::2], strict=True)
    ]
    return "```python\n" + "\n".join(lines[: chance.randint(2, 6)]) + "\n```"


def _table(chance: random.Random, script: str) -> str:
    cells = [prose(chance, script, chance.randint(5, 15)) for _ in range(chance.randint(2, 8))]
    rows = [f"| {cell} | {chance.randint(0, 999)} |" for cell in cells]
    return "\n".join([f"| {prose(chance, script, 6)} | % |", "| --- | ---: |", *rows])


def _quotation(chance: random.Random, script: str) -> str:
    return f"> {prose(chance, script, chance.randint(30, 100))}"


def _emphasis(chance: random.Random, script: str) -> str:
    first, second, third = (prose(chance, script, chance.randint(10, 50)) for _ in range(3))
    return f"{first} **{second}** `{chance.randint(10, 99)}` _{third}_"


_BLOCKS: tuple[Callable[[random.Random, str], str], ...] = (
    _paragraph,
    _paragraph,
    _heading,
    _bullets,
    _numbers,
    _code,
    _table,
    _quotation,
    _emphasis,
)


# --- what models do ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An answer that was cut, and the continuation that a model came up with."""

    stored: str
    rest: str
    said: str


def tail_of(stored: str) -> str:
    """The end of the stored text with which a model is asked to begin."""
    from outlast.chat.seam import instruct  # not yet installed when jobs are only listed

    return instruct.tail_of(stored)


def obey(chance: random.Random, script: str, stored: str, rest: str) -> str:
    return tail_of(stored) + rest


def go_on(chance: random.Random, script: str, stored: str, rest: str) -> str:
    return rest


def repeat_the_tail(chance: random.Random, script: str, stored: str, rest: str) -> str:
    return stored[-chance.randint(40, 400) :] + rest


def repeat_the_last_line(chance: random.Random, script: str, stored: str, rest: str) -> str:
    before = max(0, len(stored) - 40)
    start = max(stored.rfind("\n", 0, before), stored.rfind(". ", 0, before)) + 1
    return stored[start:].lstrip() + rest


def repeat_everything(chance: random.Random, script: str, stored: str, rest: str) -> str:
    return stored + rest


def greet_and_obey(chance: random.Random, script: str, stored: str, rest: str) -> str:
    return chance.choice(GREETINGS) + tail_of(stored) + rest


def greet_and_go_on(chance: random.Random, script: str, stored: str, rest: str) -> str:
    return chance.choice(GREETINGS) + rest


def greet_and_repeat_everything(chance: random.Random, script: str, stored: str, rest: str) -> str:
    return chance.choice(GREETINGS) + stored + rest


def stop_at_once(chance: random.Random, script: str, stored: str, rest: str) -> str:
    return ""


def restart_differently(chance: random.Random, script: str, stored: str, rest: str) -> str:
    """Another answer, which often begins with the same words."""
    kept = chance.choice((0, 20, 40)) if len(stored) > 80 else 0
    end = stored.find(" ", kept) if kept else 0
    return stored[: max(0, end)] + " " * (end > 0) + markdown(chance, script, 300)


def switch_language(chance: random.Random, script: str, stored: str, rest: str) -> str:
    return prose(chance, chance.choice([each for each in SCRIPTS if each != script]), 300)


Misbehaviour = Callable[[random.Random, str, str, str], str]
SPLICEABLE: tuple[Misbehaviour, ...] = (
    obey,
    go_on,
    repeat_the_tail,
    repeat_the_last_line,
    repeat_everything,
    greet_and_obey,
    greet_and_go_on,
    greet_and_repeat_everything,
    stop_at_once,
)
WRONG: tuple[Misbehaviour, ...] = (restart_differently, switch_language)


def case(chance: random.Random, behave: Misbehaviour) -> Case:
    """A random answer, cut at a random place, and what the model says then."""
    script = chance.choice(SCRIPTS)
    write = chance.choice((prose, markdown))
    text = write(chance, script, chance.choice((40, 150, 500, 1500)))
    cut = chance.randint(min(12, len(text)), len(text))
    stored, rest = text[:cut], text[cut:]
    if behave is stop_at_once:
        rest = ""
    return Case(stored, rest, behave(chance, script, stored, rest))


def pieces(chance: random.Random, text: str) -> Iterator[str]:
    """A text as a provider streams it."""
    place = 0
    while place < len(text):
        size = chance.choice((1, 2, 3, 5, 8, 20, 400))
        yield text[place : place + size]
        place += size


def spliced(
    stored: str, deltas: Iterator[str] | list[str], settings: SpliceSettings | None = None
) -> tuple[str, Verdict]:
    """What is shown of a continuation, and the verdict about it."""
    from outlast.chat.seam.splice import Splicer

    splicer = Splicer(stored, settings)
    shown = "".join([splicer.feed(delta, 0.0) for delta in deltas]) + splicer.finish(0.0)
    assert splicer.verdict is not None
    return shown, splicer.verdict
