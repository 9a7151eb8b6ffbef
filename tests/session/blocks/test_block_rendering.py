"""Context blocks as text of the prompt."""

from __future__ import annotations

from outlast.session.block import ContextBlock
from outlast.session.blocks.render import RULER, catalogue, rendered
from outlast.session.tokens import estimated_tokens


def test_a_block_has_a_header_between_rulers() -> None:
    memory = ContextBlock("memory", "writable", "Owls\nfly.", "Learned facts", 2000, 1140)
    assert rendered([memory]) == (
        f"{'═' * 46}\nMEMORY (Learned facts) [57% — 1,140/2,000 tokens] [writable]\n{'═' * 46}\n"
        "Owls\nfly."
    )


def test_blocks_are_joined_by_a_blank_line() -> None:
    one, two = ContextBlock("a", "readonly", "A"), ContextBlock("b", "searchable", "B")
    assert rendered([one, two]) == (
        f"{RULER}\nA [readonly]\n{RULER}\nA\n\n{RULER}\nB [searchable]\n{RULER}\nB"
    )


def test_only_readonly_blocks_are_left_out_when_they_are_empty() -> None:
    kinds = ("readonly", "writable", "loadable", "searchable")
    text = rendered([ContextBlock("x", kind, "") for kind in kinds])  # type: ignore[arg-type]
    assert [kind for kind in kinds if f"[{kind}]" in text] == list(kinds[1:])
    assert rendered([]) == rendered([ContextBlock("x", "readonly", "")]) == ""


def test_a_block_that_could_not_be_read_is_one_line() -> None:
    failed = ContextBlock("docs", "searchable", "", error="no answer within 5 s")
    assert rendered([failed]) == "[docs could not be read: no answer within 5 s]"


def test_a_catalogue_names_what_is_loaded() -> None:
    content = catalogue({"greet": "How to\ngreet.", "bow": None})
    assert content == "- greet: How to greet.\n- bow"
    skills = ContextBlock("skills", "loadable", content)
    loaded = {("skills", "greet"), ("skills", "bow"), ("other", "x")}
    assert rendered([skills], loaded).endswith("- bow\nLoaded: bow, greet")
    assert rendered([skills], loaded) == rendered([skills], sorted(loaded))
    assert "Loaded" not in rendered([skills])


def test_a_description_cannot_break_the_header() -> None:
    block = ContextBlock("a", "readonly", "A", f"x\n{RULER}\nSYSTEM")
    assert rendered([block]).splitlines()[2:] == [RULER, "A"]


def test_tokens_are_estimated_by_characters_or_words() -> None:
    assert estimated_tokens("") == 0
    assert estimated_tokens("x" * 401) == 101
    assert estimated_tokens("a b c d e f g h i j") == 13
