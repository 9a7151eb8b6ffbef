"""Which entries the model has loaded, as the conversation tells."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.session.blocks.loaded import as_result, loaded_keys, loads, unloaded_marker


def call(tool: str, key: Any = "greet", output: Any = "Bow.", **more: Any) -> dict[str, Any]:
    part = {
        "type": f"tool-{tool}_context",
        "toolCallId": "c",
        "state": "output-available",
        "input": {"label": "skills", "key": key},
        "output": output,
    }
    return {**part, **more}


def said(*parts: Any) -> dict[str, Any]:
    return {"id": "m", "role": "assistant", "parts": list(parts)}


GREET = ("skills", "greet")


def test_what_was_loaded_and_not_unloaded_since_is_loaded() -> None:
    load, unload = call("load"), call("unload", output="Unloaded.")
    assert loaded_keys([said(load), said(call("load", "bow"))]) == {GREET, ("skills", "bow")}
    assert loaded_keys([said(load), said(unload)]) == set()
    assert loaded_keys([said(load, unload), said(load)]) == {GREET}


def test_a_result_that_was_removed_is_not_loaded() -> None:
    removed = call("load", output=unloaded_marker("skills", "greet"))
    assert loaded_keys([said(removed)]) == set()
    assert not loads(removed, *GREET)
    assert loads(call("load"), *GREET)
    assert not loads(call("load"), "skills", "bow")


@pytest.mark.parametrize(
    "part",
    [
        call("load", output="Error: skills has no entry"),
        call("load", state="output-error"),
        call("load", state="input-available"),
        call("load", preliminary=True),
        call("load", input=None),
        call("load", key=3),
        call("load", output={"a": 1}),
        call("search"),
        {"type": "text", "text": "load_context"},
        None,
        "tool-load_context",
    ],
)
def test_nothing_else_counts(part: Any) -> None:
    assert loaded_keys([said(part), {"id": "n", "role": "user"}]) == set()


def test_a_failed_unload_leaves_it_loaded() -> None:
    failed = call("unload", output="Error: no")
    assert loaded_keys([said(call("load")), said(failed)]) == {GREET}


def test_dynamic_tools_count_too() -> None:
    part = call("load", type="dynamic-tool", toolName="load_context")
    assert loaded_keys([said(part)]) == {GREET}


def test_content_that_looks_like_an_error_is_loaded_all_the_same() -> None:
    content = "Error: how to handle them"
    assert loaded_keys([said(call("load", output=as_result(content)))]) == {GREET}
    assert as_result(content).strip() == content
    assert as_result("Bow.") == "Bow."
