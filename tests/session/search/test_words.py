"""What the words of a text are, in many scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.session.search.words import MAX_LENGTH, Piece, analyser, is_unspaced


def words(text: str, language: str | None = None) -> list[str]:
    return [piece.word for piece in analyser(language).pieces(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Two OWLS, flew!", ["two", "owls", "flew"]),
        ("foo_bar.baz(1)", ["foo", "bar", "baz", "1"]),
        ("don't e-mail v2.0", ["don", "t", "e", "mail", "v2", "0"]),
        ("Café CAFE\u0301 cafe", ["cafe", "cafe", "cafe"]),
        ("Straße İstanbul ﬁne", ["strasse", "istanbul", "fine"]),
        ("½ ² ﷺ", ["1", "2", "2", "صلى", "الله", "عليه", "وسلم"]),
        ("Ἀθῆναι ΣΟΦΟΣ σοφός", ["αθηναι", "σοφοσ", "σοφοσ"]),
        ("ёлка новый їжак", ["елка", "новый", "їжак"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("كِتَابٌ كتاب", ["كتاب", "كتاب"]),
        ("می\u200cخواهم", ["میخواهم"]),
        ("日本語", ["日本", "本語", "語"]),
        ("日", ["日"]),
        ("iPhone手机", ["iphone", "手机", "机"]),
        ("ภาษาไทย", ["ภา", "าษ", "ษา", "าไ", "ไท", "ทย", "ย"]),
        ("한국어", ["한국", "국어", "어"]),
        ("ｶﾞ ＡＢＣ", ["ガ", "abc"]),
        ("soft\u00adhyphen zero\u200bwidth", ["softhyphen", "zero", "width"]),
        ("🦉 👩\u200d🚀 ❤\ufe0f \0 \ud800 … --", []),
        ("", []),
        ("x" * 100, ["x" * MAX_LENGTH]),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_stems_are_those_of_the_language() -> None:
    assert analyser("english").pieces("owls owl") == [
        Piece("owls", "owl", 0, 4),
        Piece("owl", "", 0, 3),
    ]
    assert analyser("german").stem_of("häusern") == "haus"
    assert analyser("english").stem_of("café") == "cafe"
    assert analyser(None).stem_of("owls") == "owls"
    assert analyser("english").stem_of("v2s") == "v2s"


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of arabic, .*, got 'klingon'"):
        analyser("klingon")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Two owls", ["Two", "owls"]),
        ("日本語x", ["日本", "本語", "語", "x"]),
        ("a, cafe\u0301!", ["a", "cafe\u0301"]),
    ],
)
def test_spans_are_places_in_the_text(text: str, expected: list[str]) -> None:
    assert [text[each.start : each.end] for each in analyser("english").spans(text)] == expected


@given(st.text())
def test_any_text_has_words_that_the_engines_take_as_they_are(text: str) -> None:
    pieces = analyser("english").pieces(text)
    spans = analyser("english").spans(text)
    assert [piece[:2] for piece in pieces] == [piece[:2] for piece in spans]
    for piece in spans:
        assert 0 <= piece.start < piece.end <= len(text)
        for each in filter(None, (piece.word, piece.stem)):
            assert len(each) <= MAX_LENGTH
            assert not set(each) & set(" ~'\"\\:*\0")
            assert each == each.strip()
            assert each.encode()


@given(st.text(st.characters(codec="utf-8")))
def test_words_of_words_are_the_same_words(text: str) -> None:
    for word in words(text):
        if not is_unspaced(word) and len(word) < MAX_LENGTH:
            assert words(word) == [word]
