"""What a query means, and that every text is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.session.search.matching import for_fts5, for_tsquery
from outlast.session.search.query import MAX_TERMS, MAX_WORDS, SearchQuery, Term, parsed
from outlast.session.search.words import analyser

ENGLISH = analyser("english")


def plain(word: str, stem: str | None = None) -> Term:
    return Term((word,), stem or word)


@pytest.mark.parametrize(
    ("text", "required", "excluded"),
    [
        ("owls", [plain("owls", "owl")], []),
        ("Night  owls", [plain("night"), plain("owls", "owl")], []),
        ('"night owls"', [Term(("night", "owls"))], []),
        ("“night owls”", [Term(("night", "owls"))], []),
        ("ow*", [Term(("ow",), is_prefix=True)], []),
        ('"night ow"*', [Term(("night", "ow"), is_prefix=True)], []),
        ("owl -night", [plain("owl")], [plain("night")]),
        (
            'owl -"at night" -da*',
            [plain("owl")],
            [Term(("at", "night")), Term(("da",), None, True)],
        ),
        ("read_file(1)", [Term(("read", "file", "1"))], []),
        ("owl,cat;dog|cow", [plain("owl"), plain("cat"), plain("dog"), plain("cow")], []),
        ("owl owl OWL", [plain("owl")], []),
        ("well-known", [Term(("well", "known"))], []),
        ("日本語", [Term(("日本", "本語"))], []),
        ("日", [Term(("日",), is_prefix=True)], []),
        ('"日本語 abc"', [Term(("日本", "本語", "語", "abc"))], []),
        ('"abc 日"', [Term(("abc", "日"), is_prefix=True)], []),
        # Not operators, or not closed: text.
        ('"night owl', [plain("night"), plain("owl")], []),
        ("owl AND NOT cat", [plain("owl"), plain("and"), plain("not"), plain("cat")], []),
        ("words:owl & !cat ^2", [Term(("words", "owl")), plain("cat"), plain("2")], []),
        (
            "owl'); DROP TABLE x --",
            [plain("owl"), plain("drop"), plain("table", "tabl"), plain("x")],
            [],
        ),
        ("ow\0l", [Term(("ow", "l"))], []),
        # Nothing to search for.
        ("", [], []),
        ('"" * - -* "*" 🦉 \0 \ud800', [], []),
        ("-owl", [], []),
    ],
)
def test_queries(text: str, required: list[Term], excluded: list[Term]) -> None:
    assert parsed(text, ENGLISH) == SearchQuery(tuple(required), tuple(excluded))


def test_a_query_is_bounded() -> None:
    many = parsed(" ".join(f"w{n} -x{n}" for n in range(100)), ENGLISH)
    assert len(many.required) + len(many.excluded) == MAX_TERMS
    long = parsed('"' + "w " * 100 + '"', ENGLISH)
    assert long.required == (Term(("w",) * MAX_WORDS),)
    assert parsed("owl " * 300_000, ENGLISH).required == (plain("owl"),)


def test_the_languages_of_the_engines() -> None:
    query = SearchQuery(
        (plain("owls", "owl"), Term(("big", "ca"), is_prefix=True)), (Term(("a", "b")), plain("c"))
    )
    assert for_fts5(query, "t") == (
        '(("twowls" OR "twowl" OR "tsowl") AND "twbig twca" *) NOT ("twa twb" OR ("twc" OR "tsc"))'
    )
    assert for_tsquery(query, "t") == (
        "('twowls' | 'twowl' | 'tsowl') & ('twbig' <-> 'twca':*) & !('twa' <-> 'twb') & !('twc' | 'tsc')"
    )


@given(st.text() | st.text("ab \"'*-()|&!:<>\\,;^~\0日語🦉", max_size=60))
def test_no_text_is_an_error(text: str) -> None:
    query = parsed(text, ENGLISH)
    assert all(term.words for term in (*query.required, *query.excluded))
    assert bool(query) or not query.excluded
