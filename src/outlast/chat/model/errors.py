"""Failures of models, classified by remedy. Decisions are pure functions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from outlast.core.errors import OutlastError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

Kind = Literal[
    "rate_limit",  # too many requests: wait and retry
    "overloaded",  # the provider is temporarily unavailable: wait and retry
    "connection",  # not reached, or lost on the way
    "truncated",  # the answer was cut off
    "stalled",  # nothing arrived for longer than `stall_timeout`
    "context_overflow",  # the conversation is too long for the model: shorten it
    "quota",  # the account is used up
    "rejected",  # the request itself is rejected: credentials, model name, contents
    "unknown",
]

Overflow = Literal["context_overflow"]

_SHOWN: dict[Kind, str] = {
    "rate_limit": "The model is busy. Please try again in a moment.",
    "overloaded": "The model is busy. Please try again in a moment.",
    "connection": "The model could not be reached. Please try again in a moment.",
    "truncated": "The answer was cut off. Please try again.",
    "stalled": "The model stopped answering. Please try again.",
    "context_overflow": "The conversation is too long for the model.",
    "quota": "The model is not available at the moment.",
    "rejected": "The model did not accept the request.",
    "unknown": "The model could not answer.",
}
HIDDEN = "An error occurred."

# Error messages of providers about a conversation that is too long, where there is no error code.
_TOO_LONG = re.compile(
    "|".join(
        (
            "prompt is too long",  # Anthropic, also behind Bedrock
            "request_too_large|exceeds the maximum size",  # Anthropic, counting bytes
            "context.length.exceeded|exceeds the context window",  # OpenAI
            "maximum context length",  # OpenAI, OpenRouter, vLLM, DeepSeek, Mistral
            "input tokens? exceed",  # OpenAI, Bedrock
            "token count.*exceeds|number of tokens allowed",  # Google
            "input is too long",  # Bedrock
            "input length.*(too long|exceed)",  # DashScope, proxies
            "maximum prompt length",  # xAI
            "reduce the length of the (messages|prompt|input)",  # Groq
            "exceeds? the (available|model'?s?|maximum)? ?context",  # llama.cpp, Ollama
            "(greater|larger|longer|more) than the (model'?s )?context",  # LM Studio
            "context (window|length|size) (is )?(exceed|overflow|full|limit)",  # MiniMax, proxies
            "exceeded (the )?model token limit",  # Moonshot
            "more than max tokens allowed",  # Z.ai
            "too many (input |prompt )?tokens(?!,? please wait| per)",  # Cohere; not Bedrock's throttling
        )
    ),
    re.IGNORECASE | re.DOTALL,
)

RETRYABLE: frozenset[Kind] = frozenset({"rate_limit", "overloaded", "connection", "truncated"})

FIRST_DELAY = 0.5  # seconds
LARGEST_DELAY = 8.0  # seconds
LARGEST_EXPONENT = 20
LARGEST_RETRY_AFTER = 60.0  # seconds; a longer wait is not worth it


class UnknownModel(OutlastError, LookupError):
    """No model has this name. Names look like "anthropic:claude-sonnet-5"."""


class ModelNotConfigured(OutlastError):
    """The model cannot be used yet: a package or a key is missing. The message says which."""


class ModelFailed(OutlastError):
    """A request to a model failed; `kind` says how, `response` is what had arrived.

    The provider's own error is the cause.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: Kind = "unknown",
        response: ModelResponse | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.response = response
        self.retry_after = retry_after


class ModelStreamTruncated(ModelFailed):
    """The answer was cut off: the stream ended without a finish reason."""

    def __init__(self, message: str, *, response: ModelResponse | None = None) -> None:
        super().__init__(message, kind="truncated", response=response)


class ModelStalled(ModelFailed):
    """The model sent nothing for longer than `stall_timeout`, so the request was abandoned."""

    def __init__(self, message: str, *, response: ModelResponse | None = None) -> None:
        super().__init__(message, kind="stalled", response=response)


_TRANSIENT = ("stalled", "connection", "truncated", "overloaded")


def is_passing(error: BaseException) -> bool:
    """Return whether the failure is transient, so that the answer can be continued at once."""
    return isinstance(error, ModelFailed) and error.kind in _TRANSIENT


def kind_of(error: BaseException) -> Kind:
    """Classify a failure, ours or Pydantic AI's.

    ```python
    from pydantic_ai.exceptions import ModelHTTPError
    from outlast.chat.model.errors import kind_of
    assert kind_of(ModelHTTPError(502, "a-model")) == "overloaded"
    assert kind_of(ConnectionResetError()) == "connection"
    ```
    """
    if isinstance(error, ModelFailed):
        return error.kind
    from pydantic_ai import exceptions as theirs

    # Subclasses come first.
    kinds: list[tuple[type[BaseException], Kind]] = [
        (theirs.ModelRateLimitError, "rate_limit"),
        (theirs.ModelQuotaExceededError, "quota"),
        (theirs.ModelUnavailableError, "overloaded"),
        (theirs.ModelServerError, "overloaded"),
        (theirs.ModelConnectionError, "connection"),
        (theirs.ModelRequestTimeout, "connection"),
        (theirs.ModelContextWindowExceededError, "context_overflow"),
        (theirs.ModelRequestRejectedError, "rejected"),
        (OSError, "connection"),  # TimeoutError is one
    ]
    for type_, kind in kinds:
        if isinstance(error, type_):
            return kind
    if isinstance(error, theirs.ModelHTTPError):
        return _kind_of_status(error.status_code)
    if isinstance(error, theirs.FallbackExceptionGroup) and error.exceptions:
        return kind_of(error.exceptions[-1])  # the failure of the last model
    return "unknown"


def _kind_of_status(status: int) -> Kind:
    if status in (408, 425):
        return "connection"
    if status == 429:
        return "rate_limit"
    if status == 402:
        return "quota"
    return "overloaded" if status >= 500 else "rejected"


def retry_after_of(error: BaseException) -> float | None:
    """Return the wait in seconds that the provider asked for, or None."""
    seconds = getattr(error, "retry_after", None)
    return float(seconds) if isinstance(seconds, int | float) else None


def should_retry(error: BaseException, *, attempt: int, max_retries: int, seen: bool) -> bool:
    """Return whether to retry the request after this many failed attempts.

    Never after part of the answer was `seen`: a second answer would differ.
    """
    if seen or attempt > max_retries or kind_of(error) not in RETRYABLE:
        return False
    if getattr(error, "provider_retry_hint", None) is False:
        return False
    retry_after = retry_after_of(error)
    return retry_after is None or retry_after <= LARGEST_RETRY_AFTER


def retry_delay(error: BaseException, *, attempt: int, chance: float) -> float:
    """Return the seconds until the next attempt: the provider's wait, else doubling, with jitter (0..1)."""
    retry_after = retry_after_of(error)
    if retry_after is not None and retry_after > 0:
        return retry_after
    doubled = FIRST_DELAY * 2.0 ** min(attempt - 1, LARGEST_EXPONENT)
    return min(LARGEST_DELAY, float(doubled)) * (0.75 + chance / 4)


def shown_to_users(error: BaseException) -> str:
    """Return an error message for users, without details of the provider, the configuration or the code.

    The error itself is for the store, the log and the inspector.

    ```python
    from outlast.chat.model.errors import ModelFailed, shown_to_users
    failure = ModelFailed("the model gpt-5 failed: key sk-… has no credit", kind="quota")
    assert shown_to_users(failure) == "The model is not available at the moment."
    assert shown_to_users(KeyError("secret")) == "An error occurred."
    ```
    """
    if isinstance(error, ModelFailed):
        return _SHOWN[error.kind]
    if isinstance(error, ModelNotConfigured | UnknownModel):
        return _SHOWN["quota"]
    is_for_users = getattr(error, "is_for_users", False) is True
    return str(error) or HIDDEN if is_for_users else HIDDEN


def _classify_overflow(error: BaseException | str, context: Any = None) -> Overflow | None:
    """Return "context_overflow" if an error, or its message, says that the conversation is too long.

    For `classify_chat_error`; it knows the messages of Anthropic, OpenAI, Google, Bedrock and others.

    ```python
    from outlast.chat.model.errors import default_context_overflow_classifier as classify
    assert classify("prompt is too long: 210000 tokens > 200000 maximum") == "context_overflow"
    assert classify(ValueError("no")) is None
    ```
    """
    if isinstance(error, BaseException):
        kind = kind_of(error)
        if kind in ("context_overflow", "rate_limit", "quota"):
            return "context_overflow" if kind == "context_overflow" else None
    return "context_overflow" if _TOO_LONG.search(str(error)) else None


# Static, so that it can be assigned in a class: `classify_chat_error = default_context_overflow_classifier`.
default_context_overflow_classifier = staticmethod(_classify_overflow)
