"""What an application hands in becomes messages, or an error that says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.chat.message.incoming import sanitised, to_messages


class Counted:
    """Ids in order."""

    def __init__(self) -> None:
        self.given = 0

    def new(self, kind: str) -> str:
        self.given += 1
        return f"{kind}_{self.given}"


TEXT = {"type": "text", "text": "Hello"}


def test_a_text_is_a_message_of_the_user() -> None:
    message = {"id": "message_1", "role": "user", "parts": [TEXT]}
    assert to_messages("Hello", Counted()) == [message]
    assert to_messages(["Hello"], Counted()) == [message]


def test_a_message_keeps_its_id_and_what_is_unknown() -> None:
    given = {"id": "u1", "role": "user", "parts": [{"type": "novel", "x": 1}], "y": [2]}
    assert to_messages(given, Counted()) == [given]
    [without] = to_messages({"role": "user", "parts": [TEXT]}, Counted())
    assert without["id"] == "message_1"


def test_what_is_stored_is_a_copy() -> None:
    given: dict[str, Any] = {"id": "u1", "role": "user", "parts": [dict(TEXT)]}
    [stored] = to_messages(given, Counted())
    given["parts"][0]["text"] = "changed"
    assert stored["parts"] == [TEXT]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (7, TypeError, "the message must be a str or a dict, got int"),
        (["a", 7], TypeError, r"messages\[1\] must be a str or a dict"),
        ({"parts": []}, ValueError, "role must be one of user, assistant, system, got None"),
        ({"role": "tool", "parts": []}, ValueError, "role must be one of .*, got 'tool'"),
        ({"role": "user"}, TypeError, "parts must be a list"),
        ({"role": "user", "content": "Hi"}, TypeError, "put its text into"),
        ({"role": "user", "parts": "Hi"}, TypeError, "parts must be a list, got str"),
        ({"role": "user", "parts": ["Hi"]}, TypeError, r"\['parts'\]\[0\] must be a dict, got str"),
        ({"role": "user", "parts": [{}]}, TypeError, "type must be a str"),
        ({"role": "user", "parts": [{"type": "text"}]}, TypeError, "text must be a str"),
        ({"role": "user", "parts": [], "id": 7}, TypeError, "id must be a str, got 7"),
        ({"role": "user", "parts": [], "id": " "}, ValueError, "id must not be blank"),
        (
            {"role": "user", "parts": [{**TEXT, "x": {1}}]},
            TypeError,
            r"\['parts'\]\[0\]\['x'\] is a set",
        ),
        (
            [{"role": "user", "parts": [], "id": "u"}] * 2,
            ValueError,
            r"messages\[1\]: duplicate message id 'u'",
        ),
    ],
)
def test_wrong_shapes_are_named(given: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        to_messages(given, Counted())


def test_reserved_metadata_is_stripped() -> None:
    metadata = {"channel": "x", "turnMetadata": {}, "mine": 1}
    given = {"id": "u", "role": "user", "parts": [TEXT], "metadata": metadata}
    [stored] = to_messages(given, Counted())
    assert stored["metadata"] == {"mine": 1}
    [bare] = to_messages({**given, "metadata": {"channel": "x"}}, Counted())
    assert "metadata" not in bare


def test_handles_of_openai_are_not_stored_and_hollow_reasoning_goes() -> None:
    def reasoning(text: str, **providers: object) -> dict[str, Any]:
        return {"type": "reasoning", "text": text, "providerMetadata": providers}

    handles = {"itemId": "rs_1", "reasoningEncryptedContent": "x"}
    message = {
        "id": "a",
        "role": "assistant",
        "parts": [
            reasoning("", openai=handles),
            reasoning("kept", openai=handles),
            reasoning("", openai={**handles, "other": 1}),
            reasoning("", outlast={"signature": "s", "id": "rs_1"}),
            {"type": "tool-x", "callProviderMetadata": {"openai": handles}},
            "garbage",
        ],
    }
    assert sanitised(message)["parts"] == [
        {"type": "reasoning", "text": "kept"},
        reasoning("", openai={"other": 1}),
        reasoning("", outlast={"signature": "s", "id": "rs_1"}),
        {"type": "tool-x"},
        "garbage",
    ]


def test_half_surrogates_are_mended() -> None:
    [message] = to_messages("a\ud800", Counted())
    assert message["parts"][0]["text"] == "a\ufffd"
