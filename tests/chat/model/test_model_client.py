"""The model facade by itself: retries, stops and suspended answers, in virtual time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import exceptions as theirs
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel

from outlast.chat.model.beginnings import CONTINUE
from outlast.chat.model.client import ModelStream, open_stream, resolve
from outlast.chat.model.errors import (
    LARGEST_DELAY,
    LARGEST_RETRY_AFTER,
    ModelFailed,
    ModelNotConfigured,
    ModelStalled,
    ModelStreamTruncated,
    UnknownModel,
    kind_of,
    retry_delay,
    should_retry,
)
from outlast.chat.model.request import request_messages, request_settings
from outlast.chat.model.settings import model_settings
from outlast.core.abort import Abort
from outlast.testing import ScriptedModel, Step

pytestmark = pytest.mark.virtual_time
HI: list[ModelMessage] = [ModelRequest.user_text_prompt("Hi")]


def now() -> float:
    return asyncio.get_running_loop().time()


def later(seconds: float, action: Callable[..., object]) -> None:
    asyncio.get_running_loop().call_later(seconds, action)


async def ask(model: Any, messages: Any = HI, **options: Any) -> tuple[list[Any], ModelStream]:
    async with open_stream(model, messages, **options) as stream:
        events = [event async for event in stream]
    return events, stream


def http(status: int, category: Any = None, **fields: Any) -> Exception:
    return theirs.ModelHTTPError.for_category(
        category, status_code=status, model_name="m", **fields
    )


# --- kinds of errors -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (http(429, theirs.ModelRateLimitError), "rate_limit"),
        (http(429), "rate_limit"),
        (http(402), "quota"),
        (theirs.ModelQuotaExceededError("m", "empty"), "quota"),
        (theirs.ModelOverloadedError("m", "overloaded", in_stream=True), "overloaded"),
        (theirs.ModelUnavailableError("m", "down"), "overloaded"),
        (http(500, theirs.ModelServerError), "overloaded"),
        (http(502), "overloaded"),
        (theirs.ModelConnectionError("m", "reset"), "connection"),
        (theirs.ModelTimeoutError("m", "slow"), "connection"),
        (theirs.ModelRequestTimeout("m", 5), "connection"),
        (http(408), "connection"),
        (ConnectionResetError(), "connection"),
        (TimeoutError(), "connection"),
        (http(400, theirs.ModelContextWindowExceededError), "context_overflow"),
        (http(400, theirs.ModelRequestRejectedError), "rejected"),
        (http(401, theirs.ModelAuthenticationError), "rejected"),
        (http(404, theirs.ModelNotFoundError), "rejected"),
        (http(418), "rejected"),
        (theirs.ModelAPIError("m", "?"), "unknown"),
        (theirs.UnexpectedModelBehavior("?"), "unknown"),
        (ValueError("?"), "unknown"),
        (ModelFailed("?", kind="quota"), "quota"),
        (ModelStreamTruncated("?"), "truncated"),
        (ModelStalled("?"), "stalled"),
        (theirs.FallbackExceptionGroup("all", [http(400), http(429)]), "rate_limit"),
    ],
)
def test_every_error_has_a_kind(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


def test_only_what_passes_is_retried_and_only_while_nobody_has_seen_anything() -> None:
    passing = [http(429), http(503), ConnectionResetError(), ModelStreamTruncated("?")]
    lasting = [http(400), http(402), ValueError(), ModelStalled("?")]
    for error in passing:
        assert should_retry(error, attempt=1, max_retries=2, seen=False)
        assert should_retry(error, attempt=2, max_retries=2, seen=False)
        assert not should_retry(error, attempt=3, max_retries=2, seen=False)
        assert not should_retry(error, attempt=1, max_retries=0, seen=False)
        assert not should_retry(error, attempt=1, max_retries=2, seen=True)
    for error in lasting:
        assert not should_retry(error, attempt=1, max_retries=2, seen=False)


def test_a_provider_that_says_not_to_retry_is_believed() -> None:
    error = http(503, headers={"x-should-retry": "false"})
    assert not should_retry(error, attempt=1, max_retries=2, seen=False)


def test_a_wait_is_what_the_provider_asks_for_within_bounds() -> None:
    soon = http(429, retry_after=LARGEST_RETRY_AFTER)
    assert should_retry(soon, attempt=1, max_retries=1, seen=False)
    assert retry_delay(soon, attempt=1, chance=0.5) == LARGEST_RETRY_AFTER
    far = http(429, retry_after=LARGEST_RETRY_AFTER + 1)
    assert not should_retry(far, attempt=1, max_retries=1, seen=False)


def test_waits_double_up_to_a_limit_and_are_spread() -> None:
    delays = [retry_delay(http(503), attempt=n, chance=1.0) for n in range(1, 8)]
    assert delays == [0.5, 1.0, 2.0, 4.0, LARGEST_DELAY, LARGEST_DELAY, LARGEST_DELAY]
    assert retry_delay(http(503), attempt=1, chance=0.0) == 0.375
    assert retry_delay(http(503), attempt=5000, chance=1.0) == LARGEST_DELAY


# --- retries -------------------------------------------------------------------------------------


async def test_a_failure_that_passes_is_retried_after_growing_waits() -> None:
    model = ScriptedModel(
        Step.fails("overloaded"), Step.fails("connection"), "Hello.", by="request"
    )
    told: list[tuple[int, float]] = []
    _, stream = await ask(
        model, chance=lambda: 1.0, on_retry=lambda _, attempt, delay: told.append((attempt, delay))
    )
    assert stream.response.text == "Hello."
    assert told == [(1, 0.5), (2, 1.0)]
    assert now() == 1.5


async def test_retries_end() -> None:
    model = ScriptedModel.fails("rate_limit", retry_after=7)
    with pytest.raises(ModelFailed) as caught:
        await ask(model, max_retries=3)
    assert caught.value.kind == "rate_limit"
    assert caught.value.retry_after == 7
    assert len(model.requests) == 4
    assert now() == 21


async def test_nothing_is_retried_once_something_was_seen() -> None:
    model = ScriptedModel(Step.text("Hello ") + Step.fails("overloaded"))
    seen = []
    with pytest.raises(ModelFailed) as caught:
        async with open_stream(model, HI) as stream:
            async for event in stream:
                seen.append(event)
    assert seen
    assert len(model.requests) == 1
    assert caught.value.response is not None
    assert caught.value.response.text == "Hello "
    assert caught.value.response.state == "incomplete"
    assert stream.response.text == "Hello "


async def test_a_broken_off_answer_is_retried_if_it_had_not_begun() -> None:
    model = ScriptedModel(Step.truncated(), "Hello.", by="request")
    _, stream = await ask(model)
    assert stream.response.text == "Hello."


async def test_an_error_of_the_models_own_code_is_told_with_its_cause() -> None:
    boom = RuntimeError("boom")
    with pytest.raises(ModelFailed, match="boom") as caught:
        await ask(ScriptedModel.fails(boom))
    assert caught.value.__cause__ is boom
    assert caught.value.kind == "unknown"


# --- stopping ------------------------------------------------------------------------------------


async def test_an_abort_ends_a_silent_answer_and_keeps_what_had_come() -> None:
    model = ScriptedModel(Step.text("Hello ") + Step.stalls() + "there.")
    abort = Abort()
    later(5, lambda: abort.set("enough"))
    events, stream = await ask(model, abort=abort)
    assert events
    assert now() == 5
    assert (stream.response.text, stream.response.state) == ("Hello ", "interrupted")
    assert stream.is_aborted
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_abort_ends_the_wait_for_a_retry() -> None:
    model = ScriptedModel.fails("rate_limit", retry_after=50)
    abort = Abort()
    later(5, abort.set)
    events, stream = await ask(model, abort=abort)
    assert (events, now(), len(model.requests)) == ([], 5, 1)
    assert stream.response.state == "interrupted"


async def test_an_abort_between_two_events_is_the_end() -> None:
    abort = Abort()
    seen = []
    async with open_stream(ScriptedModel("a b c d"), HI, abort=abort) as stream:
        async for event in stream:
            seen.append(event)
            abort.set()
    assert len(seen) == 1
    assert stream.response.text == "a "
    assert stream.response.state == "interrupted"


async def test_an_abort_that_is_set_already_asks_no_model() -> None:
    model = ScriptedModel("Hello.")
    abort = Abort()
    abort.set()
    events, stream = await ask(model, abort=abort)
    assert (events, model.requests, stream.response.parts) == ([], [], [])


async def test_an_abort_after_the_end_changes_nothing() -> None:
    abort = Abort()
    _, stream = await ask(ScriptedModel("Hello."), abort=abort)
    abort.set()
    assert stream.response.state == "complete"


async def test_cancelling_the_reader_is_not_swallowed_even_together_with_an_abort() -> None:
    abort = Abort()
    reader = asyncio.create_task(ask(ScriptedModel.stalls(), abort=abort))
    await asyncio.sleep(1)
    abort.set()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader


async def test_a_stall_is_an_error_of_its_own() -> None:
    model = ScriptedModel(Step.text("Hello ") + Step.stalls(31))
    with pytest.raises(ModelStalled) as caught:
        await ask(model, stall_timeout=timedelta(seconds=30))
    assert now() == 30
    assert caught.value.response is not None
    assert caught.value.response.text == "Hello "
    assert len(model.requests) == 1


async def test_the_silence_before_the_first_word_counts_too() -> None:
    with pytest.raises(ModelStalled):
        await ask(ScriptedModel.stalls(), stall_timeout=30)


@pytest.mark.parametrize("off", [0, None, timedelta(0)])
async def test_a_stall_timeout_of_nothing_is_off(off: Any) -> None:
    _, stream = await ask(ScriptedModel(Step.stalls(1e6) + "Hello."), stall_timeout=off)
    assert stream.response.text == "Hello."


async def test_neither_a_slow_model_nor_a_slow_reader_nor_a_retry_is_a_stall() -> None:
    model = ScriptedModel(
        Step.fails("rate_limit", retry_after=50), Step.text("a b c", delay=9), by="request"
    )
    async with open_stream(model, HI, stall_timeout=10) as stream:
        async for _ in stream:
            await asyncio.sleep(100)
    assert stream.response.text == "a b c"


async def test_leaving_early_keeps_what_was_seen() -> None:
    async with open_stream(ScriptedModel("a b c"), HI) as stream:
        async for _ in stream:
            break
    assert stream.response.text == "a "
    assert stream.response.state == "incomplete"


async def test_an_abort_can_be_awaited_by_many_and_keeps_its_first_reason() -> None:
    abort = Abort()
    waiting = [asyncio.create_task(_wait(abort)) for _ in range(3)]
    await asyncio.sleep(1)
    waiting.pop().cancel()
    await asyncio.sleep(0)
    abort.set("first")
    abort.set("second")
    assert await asyncio.gather(*waiting) == ["first", "first"]
    assert await abort == "first"


async def _wait(abort: Abort) -> str | None:
    return await abort


# --- what is sent --------------------------------------------------------------------------------


async def test_the_conversation_is_repaired_and_ends_with_the_user() -> None:
    model = ScriptedModel("Hello.", repeat=True)
    call = ToolCallPart("look", "{}", "c1")
    await ask(model, [*HI, ModelResponse([call])])
    (result,) = model.requests[-1].messages[-1].parts
    assert isinstance(result, ToolReturnPart)
    assert result.tool_call_id == "c1"
    orphan = ModelRequest([ToolReturnPart("look", "?", "c2"), UserPromptPart("and?")])
    await ask(model, [*HI, ModelResponse([TextPart("Yes")]), orphan])
    assert [part.part_kind for part in model.requests[-1].messages[-1].parts] == ["user-prompt"]
    await ask(model, [*HI, ModelResponse([TextPart("Hel")])])
    (prompt,) = model.requests[-1].messages[-1].parts
    assert prompt.content == CONTINUE


def test_a_thought_without_its_end_is_left_out_and_a_whole_one_is_kept() -> None:
    model, parameters = ScriptedModel("x"), ModelRequestParameters()
    cut = ModelResponse([ThinkingPart("Hm")], state="interrupted")
    assert len(request_messages(model, [*HI, cut], parameters)) == 1
    whole = ModelResponse([ThinkingPart("Hm", signature="s"), TextPart("A")], state="interrupted")
    sent = request_messages(model, [*HI, whole], parameters)
    assert len(sent[1].parts) == 2


async def test_the_instructions_of_the_conversation_reach_the_model() -> None:
    model = ScriptedModel("Hello.")
    asked = ModelRequest([UserPromptPart("Hi")], instructions="Be brief.")
    await ask(model, [asked])
    assert model.requests[0].instructions == "Be brief."


async def test_system_messages_stay_where_they_are() -> None:
    model = ScriptedModel("Hello.")
    note = ModelRequest([SystemPromptPart("It is late."), UserPromptPart("And?")])
    await ask(model, [*HI, ModelResponse([TextPart("Yes")]), note])
    assert model.requests[0].messages[-1].parts[0].part_kind == "system-prompt"


def test_the_packages_own_retries_are_off_where_there_are_any() -> None:
    class Without(ScriptedModel):
        unsupported_settings = frozenset({"max_retries"})

    assert request_settings(ScriptedModel("x"), None) == {"max_retries": 0}
    assert request_settings(ScriptedModel("x"), {"max_retries": 4}) == {"max_retries": 4}
    assert request_settings(Without("x"), {"seed": 1}) == {"seed": 1}
    assert request_settings(WrapperModel(Without("x")), None) == {}
    assert request_settings(FallbackModel(ScriptedModel("x"), Without("x")), None) == {}


def test_settings_keep_to_what_was_given() -> None:
    assert model_settings() == {}
    assert model_settings(
        max_output_tokens=5,
        temperature=0.0,
        top_p=0.1,
        top_k=3,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        stop_sequences=("a",),
        seed=0,
        timeout=timedelta(minutes=1),
        headers={"x": "y"},
        tool_choice=("look",),
        parallel_tool_calls=False,
        thinking="low",
        provider_options={"temperature": 1.0, "something_new": 1},
    ) == {
        "max_tokens": 5,
        "temperature": 1.0,
        "top_p": 0.1,
        "top_k": 3,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "stop_sequences": ["a"],
        "seed": 0,
        "timeout": 60.0,
        "extra_headers": {"x": "y"},
        "tool_choice": ["look"],
        "parallel_tool_calls": False,
        "thinking": "low",
        "something_new": 1,
    }
    assert model_settings(tool_choice="required", timeout=2) == {
        "tool_choice": "required",
        "timeout": 2.0,
    }


# --- answers of other models ---------------------------------------------------------------------


async def test_a_model_that_gives_no_reason_for_its_end_is_believed_if_it_never_does() -> None:
    async def words(*_: Any) -> Any:
        yield "Hello "
        yield "there."

    _, stream = await ask(FunctionModel(stream_function=words))
    assert (stream.response.text, stream.response.state) == ("Hello there.", "complete")


async def test_a_fallback_is_asked_when_the_first_model_fails() -> None:
    model = FallbackModel(ScriptedModel.fails("overloaded"), ScriptedModel("Hello."))
    _, stream = await ask(model)
    assert stream.response.text == "Hello."


# --- names ---------------------------------------------------------------------------------------


def test_a_name_stands_for_one_model_until_its_key_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "one")
    first = resolve("openai:gpt-5")
    assert resolve("openai:gpt-5") is first
    monkeypatch.setenv("OPENAI_API_KEY", "two")
    assert resolve("openai:gpt-5") is not first
    assert resolve(first) is first


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("anthropic:claude-sonnet-5", "ANTHROPIC_API_KEY"),
        ("openai:gpt-5", "OPENAI_API_KEY"),
        ("google:gemini-2.5-flash", "GOOGLE_API_KEY"),
    ],
)
def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch, name: str, variable: str) -> None:
    for other in (variable, "GEMINI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(other, raising=False)
    with pytest.raises(ModelNotConfigured) as caught:
        resolve(name)
    assert str(caught.value).endswith(f"Set the `{variable}` environment variable")
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["gpt-5", "nobody:gpt-5", ""])
def test_a_name_that_stands_for_nothing_is_refused(name: str) -> None:
    with pytest.raises(UnknownModel, match="provider:model"):
        resolve(name)


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_a_missing_package_is_named() -> None:
    names = ["anthropic:a", "openai-chat:a", "openai:a", "deepseek:a", "google:a", "groq:a"]
    said = run(
        "import sys\n"
        "sys.modules |= dict.fromkeys(['anthropic', 'openai', 'google.genai', 'groq'])\n"
        "from outlast.chat.model.client import resolve\n"
        "from outlast.chat.model.errors import ModelNotConfigured\n"
        f"for name in {names!r}:\n"
        "    try: resolve(name)\n"
        "    except ModelNotConfigured as error: print(error)"
    )
    assert [line.rpartition(": ")[2] for line in said.splitlines()] == [
        "pip install 'outlast[anthropic]'",
        "pip install 'outlast[openai]'",
        "pip install 'outlast[openai]'",
        "pip install 'outlast[openai]'",
        "pip install 'outlast[google]'",
        "pip install 'pydantic-ai-slim[groq]'",
    ]


def test_importing_the_facade_or_the_test_kit_does_not_load_pydantic_ai() -> None:
    for module in ("outlast.chat.model.client", "outlast.testing"):
        assert run(f"import sys, {module}; print('pydantic_ai' in sys.modules)") == "False"
