"""What is said of errors: to users nothing that they should not know, and of overflows that they are some."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic_ai import exceptions as theirs

from chat.model.test_model_providers import DIALECTS, Dialect, ask, serving
from outlast import OutlastError
from outlast.chat.model.errors import (
    Kind,
    ModelFailed,
    ModelNotConfigured,
    ModelStalled,
    UnknownModel,
    default_context_overflow_classifier,
    shown_to_users,
)
from outlast.chat.model.output import OutputInvalid
from outlast.chat.recovery.finish import TurnInterrupted
from outlast.core.errors import StoreUnavailable

SECRET = "key sk-123 of org-7 at https://internal:8443"


@pytest.mark.parametrize("kind", get_args(Kind))
def test_users_are_told_what_to_do_and_nothing_of_the_provider(kind: Any) -> None:
    shown = shown_to_users(ModelFailed(f"the model gpt-5 failed: {SECRET}", kind=kind))
    assert shown.endswith(".")
    assert not {"sk-123", "org-7", "internal", "gpt-5"} & set(shown.split())
    assert SECRET not in shown


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            ModelFailed(SECRET, kind="rate_limit"),
            "The model is busy. Please try again in a moment.",
        ),
        (
            ModelFailed(SECRET, kind="overloaded"),
            "The model is busy. Please try again in a moment.",
        ),
        (
            ModelFailed(SECRET, kind="context_overflow"),
            "The conversation is too long for the model.",
        ),
        (ModelStalled(SECRET), "The model stopped answering. Please try again."),
        (OutputInvalid(SECRET), "An error occurred."),
        (ModelNotConfigured(SECRET), "The model is not available at the moment."),
        (UnknownModel(SECRET), "The model is not available at the moment."),
        (StoreUnavailable(SECRET), "An error occurred."),
        (TurnInterrupted("The answer was interrupted."), "The answer was interrupted."),
        (OutlastError(), "An error occurred."),
        (ValueError(SECRET), "An error occurred."),
        (KeyboardInterrupt(), "An error occurred."),
        (theirs.ModelHTTPError(429, SECRET), "An error occurred."),
    ],
)
def test_what_users_are_shown(error: BaseException, shown: str) -> None:
    assert shown_to_users(error) == shown


OVERFLOWS = [
    "prompt is too long: 213462 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "413 request_too_large: Request exceeds the maximum size",
    "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Error code: 400 - {'error': {'code': 'context_length_exceeded'}}",
    "Input tokens exceed the configured limit of 272000 tokens.",
    "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "An error occurred (ValidationException) when calling the ConverseStream operation: "
    "Input is too long for requested model.",
    "ValidationException: The model returned the following errors: prompt is too long: 903884 tokens",
    "Too many input tokens. Max input tokens: 32000, request input token count: 33000",
    "Please reduce the length of the messages or completion.",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "This endpoint's maximum context length is 65536 tokens. However, you requested about 70000",
    "the request exceeds the available context size. try increasing the context size",
    "The number of tokens to keep from the initial prompt is greater than the context length",
    "invalid params, context window exceeds limit (2013)",
    "Invalid request: Your request exceeded model token limit: 131072",
    "tokens in request more than max tokens allowed",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081",
    "Range of input length should be [1, 30720]: input length exceeds it",
]
OTHERS = [
    "",
    "Rate limit reached for gpt-5: tokens per min. Limit 30000, Requested 31000.",
    "Too many tokens, please wait before trying again.",
    "Too many tokens per day, please wait.",
    "Number of request tokens has exceeded your per-minute rate limit",
    "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens",
    "You exceeded your current quota, please check your plan.",
    "Overloaded",
    "The file is too large.",
    "Invalid value: 'context'.",
    "messages: text content blocks must be non-empty",
]


@pytest.mark.parametrize("text", OVERFLOWS)
def test_a_conversation_that_is_too_long_is_recognised(text: str) -> None:
    classify = default_context_overflow_classifier
    assert classify(text) == "context_overflow"
    assert classify(RuntimeError(text)) == "context_overflow"
    assert classify(ModelFailed(f"the model m failed: {text}", kind="rejected")) is not None
    assert classify(ModelFailed(text, kind="rate_limit")) is None


@pytest.mark.parametrize("text", OTHERS)
def test_other_errors_are_no_overflow(text: str) -> None:
    assert default_context_overflow_classifier(text) is None
    assert default_context_overflow_classifier(RuntimeError(text)) is None


def test_a_provider_s_own_word_for_it_counts() -> None:
    error = theirs.ModelHTTPError.for_category(
        theirs.ModelContextWindowExceededError, status_code=400, model_name="m"
    )
    assert default_context_overflow_classifier(error) == "context_overflow"
    assert default_context_overflow_classifier(ModelFailed("?", kind="context_overflow"))


def test_it_can_be_assigned_in_a_class() -> None:
    class Agent:
        classify_chat_error = default_context_overflow_classifier

    assert Agent().classify_chat_error("prompt is too long", object()) == "context_overflow"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_an_overflow_of_a_real_provider_is_one(dialect: Dialect) -> None:
    refusal = dialect.error("context_overflow")
    assert refusal is not None
    async with serving(dialect, refusal) as (_, model):
        with pytest.raises(ModelFailed) as caught:
            await ask(model)
    assert default_context_overflow_classifier(caught.value) == "context_overflow"
    assert default_context_overflow_classifier(str(caught.value)) == "context_overflow"
