"""Requests to a model: the only module that uses Pydantic AI's model interface.

`resolve` turns a name into a model. `open_stream` makes one request and streams the answer, and handles what
providers and their packages do not: it repairs the conversation, retries transient failures before any of the
answer is shown, continues answers that the provider suspends, detects answers that were cut off, stops at
once when aborted, and keeps what has arrived.

Pydantic AI takes most of a second to import, so it is imported with the first model.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from outlast.chat.model.answer import (
    AnswersByCall,
    catch_up,
    is_polled,
    is_truncated,
    joined,
    shifted,
    without_cursor,
)
from outlast.chat.model.errors import (
    ModelFailed,
    ModelNotConfigured,
    ModelStalled,
    ModelStreamTruncated,
    UnknownModel,
    kind_of,
    retry_after_of,
    retry_delay,
    should_retry,
)
from outlast.chat.model.files import without_links
from outlast.chat.model.request import (
    instrumentation,
    models_behind,
    request_messages,
    request_parameters,
    request_settings,
)
from outlast.core.abort import Abort, Cut, Watch
from outlast.core.clock import seconds

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.models.instrumented import InstrumentationSettings
    from pydantic_ai.settings import ModelSettings

MAX_RETRIES = 2
MAX_CONTINUATIONS = 10  # of an answer that the provider keeps pausing
MAX_POLLS = 1000  # of an answer that the provider generates in the background
HANG_UP_ROUNDS = 20  # ticks of the event loop, after which a pending read waits for the provider
CANCEL_TIMEOUT = 5.0  # seconds for cancelling an answer at the provider
EXTRAS = {"anthropic", "google", "openai"}  # of outlast

OnRetry = Callable[[Exception, int, float], None]


# --- names ---------------------------------------------------------------------------------------


def resolve(model: str | Model) -> Model:
    """Return the model with this name ("anthropic:claude-sonnet-5"), or the given model.

    Models are cached by name, so that connections are shared, until a key or a URL in the environment
    changes.
    """
    if not isinstance(model, str):
        from pydantic_ai.models import Model

        if not isinstance(model, Model):
            raise TypeError(f"model must be a name or a model of Pydantic AI, got {model!r}")
        return model
    environment = os.environ.items()
    relevant = tuple(sorted(item for item in environment if item[0].endswith(("_KEY", "_URL"))))
    return _resolved(model, relevant)


@lru_cache(maxsize=64)
def _resolved(name: str, _environment: tuple[tuple[str, str], ...]) -> Model:
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    try:
        return infer_model(name)
    except ImportError as error:
        named = re.search(r"pydantic-ai-slim\[([\w-]+)\]", str(error))
        extra = named[1] if named else name.partition(":")[0]
        package = f"outlast[{extra}]" if extra in EXTRAS else f"pydantic-ai-slim[{extra}]"
        raise ModelNotConfigured(
            f"the model {name!r} requires a missing package: pip install '{package}'"
        ) from error
    except UserError as error:
        if error.message.startswith("Unknown model"):
            raise UnknownModel(f"{error.message} (a name must be 'provider:model')") from error
        # The first sentence names the variable; the rest is advice for other frameworks.
        cause = error.message.partition(" or pass it via")[0].partition(". ")[0]
        raise ModelNotConfigured(f"the model {name!r} is not configured: {cause}") from error


# --- the answer ----------------------------------------------------------------------------------


def open_stream(
    model: str | Model,
    messages: Sequence[ModelMessage],
    settings: ModelSettings | None = None,
    parameters: ModelRequestParameters | None = None,
    *,
    instructions: str | None = None,
    is_prefilled: bool = False,
    abort: Abort | None = None,
    stall_timeout: float | timedelta | None = None,
    max_retries: int = MAX_RETRIES,
    on_retry: OnRetry | None = None,
    chance: Callable[[], float] = random.random,
    instrument: InstrumentationSettings | bool | None = None,
) -> ModelStream:
    """Request the model's next answer, as a stream of events and then as a whole.

    `instructions` are the system prompt; the default is that of the last message that has one.
    `is_prefilled`: the messages end with words of the model, which it is to continue.
    `stall_timeout` limits the wait for each event (0 or None: no limit). `on_retry` is called before each
    retry with the error, the number of failed attempts, and the seconds until the next. `chance` provides the
    jitter of the waits.

    Messages that end with a suspended response make the provider continue it; events then continue its parts.

    ```python
    from pydantic_ai.messages import ModelRequest, PartDeltaEvent, PartStartEvent
    from outlast.chat.model.client import open_stream
    from outlast.testing import ScriptedModel

    model = ScriptedModel("Hello there.")
    async with open_stream(model, [ModelRequest.user_text_prompt("Hi")]) as stream:
        async for event in stream:
            match event:
                case PartStartEvent() | PartDeltaEvent():
                    pass  # ignore unknown events
    assert stream.response.text == "Hello there."
    assert stream.response.state == "complete"
    ```
    """
    return ModelStream(
        resolve(model),
        messages,
        settings,
        parameters,
        instructions=instructions,
        is_prefilled=is_prefilled,
        abort=abort,
        stall_timeout=None if stall_timeout is None else seconds(stall_timeout),
        max_retries=max_retries,
        on_retry=on_retry,
        chance=chance,
        instrument=instrument,
    )


class ModelStream:
    """One answer of a model, as it arrives. Use it with `async with`, which closes the connection.

    Iteration ends with the answer, or when the abort is set. Every failure is a `ModelFailed`; `response` is
    what has arrived by then.
    """

    def __init__(
        self,
        model: Model,
        messages: Sequence[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters | None,
        *,
        instructions: str | None,
        is_prefilled: bool,
        abort: Abort | None,
        stall_timeout: float | None,
        max_retries: int,
        on_retry: OnRetry | None,
        chance: Callable[[], float],
        instrument: InstrumentationSettings | bool | None,
    ) -> None:
        self.model = model
        self._messages = list(messages)
        self._before: ModelResponse | None = None  # a suspended answer of earlier requests
        if self._messages and getattr(self._messages[-1], "state", None) == "suspended":
            self._before = without_cursor(cast("ModelResponse", self._messages.pop()))
        self._parameters = request_parameters(self._messages, parameters, instructions)
        self._settings = request_settings(model, settings, self._parameters)
        self._answers = AnswersByCall({each.name for each in self._parameters.output_tools})
        self._is_prefilled = is_prefilled
        self._abort = abort
        self._stall_timeout = stall_timeout
        self._max_retries = max_retries
        self._on_retry = on_retry
        self._chance = chance
        self._instrument = instrumentation(instrument)
        self._current: StreamedResponse | None = None
        self._left: ModelResponse | None = None  # what had arrived when the reader stopped
        self._watch: Watch | None = None
        self._watched: AsyncGenerator[ModelResponseStreamEvent] | None = None
        self._events = self._read()

    async def __aenter__(self) -> ModelStream:
        if self._abort is not None or self._stall_timeout:
            self._watch = Watch(self._abort, self._stall_timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._watched is not None:
            await self._watched.aclose()
        await self._events.aclose()

    def __aiter__(self) -> AsyncIterator[ModelResponseStreamEvent]:
        if self._watch is None:
            return self._events
        self._watched = self._watch.over(self._events, self._cut_short)
        return self._watched

    async def _cut_short(self, cut: Cut) -> None:
        await self._events.aclose()
        if cut == "aborted":
            await self._cancel_job()
            return
        raise ModelStalled(
            f"the model {self.model.model_name} sent nothing for {self._stall_timeout:g} s",
            response=self.response,
        )

    @property
    def is_aborted(self) -> bool:
        return self._abort is not None and self._abort.is_set

    @property
    def is_suspended(self) -> bool:
        """Whether the provider may keep the rest of the answer for a later request."""
        return self._current is not None and self._current.state == "suspended"

    @property
    def response(self) -> ModelResponse:
        """What has arrived so far; the complete answer once the iteration has ended.

        Its `state` is then "complete"; "interrupted" after an abort; "incomplete" before and after an error;
        "suspended" if the provider keeps the answer for a later request.
        """
        from pydantic_ai.messages import ModelResponse

        if self._left is not None:
            response = self._left
        elif self._current is None:
            response = self._before or ModelResponse(
                [], model_name=self.model.model_name, state="incomplete"
            )
        else:
            response = joined(self._before, without_cursor(self._current.get()))
            response = self._answers.response(response)
        if self.is_aborted and response.state != "complete":
            response = replace(response, state="interrupted")
        return response

    # --- requests ---

    async def _read(self) -> AsyncGenerator[ModelResponseStreamEvent]:
        """Yield the events of all requests that the answer takes, with indexes of the whole answer."""
        failures = continuations = 0
        while True:
            seen = False
            try:
                async with self._request() as stream:
                    self._current = stream
                    more = None if self._before is None else self._more(stream, self._before)
                    last_end: ModelResponseStreamEvent | None = None
                    try:
                        async for event in stream if more is None else more:
                            event = self._answers.event(event)
                            if event.event_kind == "part_end" and event.next_part_kind is None:
                                last_end = (
                                    event  # yielded at the end, if the answer does not continue
                                )
                                continue
                            seen = True
                            yield event
                        if last_end is not None and not is_polled(stream.get()):
                            seen = True
                            yield last_end
                    except GeneratorExit:
                        self._left = self.response
                        if more is not None:
                            await more.aclose()
                        await _hang_up(stream)
                        raise
                response = self._complete(stream)
            except Exception as error:
                if self.is_aborted:
                    return
                if self._is_still_generated(error):
                    response = self.response
                elif not seen and self._drop_links(error):
                    continue
                else:
                    failures += 1
                    await self._retry_or_raise(error, failures, seen)
                    continue
            if response.state != "suspended":
                return
            failures = 0
            continuations += 1
            await self._continue(response, continuations)

    def _request(self) -> AbstractAsyncContextManager[StreamedResponse]:
        from pydantic_ai.direct import model_request_stream

        # A model may outlive the event loop of its connections: then it needs new ones.
        self.model._refresh_http_client()
        messages = request_messages(
            self.model, self._messages, self._parameters, is_prefilled=self._is_prefilled
        )
        if self._before is not None:
            messages.append(self._before)
        self._current = None
        return model_request_stream(
            self.model,
            messages,
            model_settings=self._settings,
            model_request_parameters=self._parameters,
            instrument=self._instrument,
        )

    async def _more(
        self, stream: StreamedResponse, before: ModelResponse
    ) -> AsyncGenerator[ModelResponseStreamEvent]:
        """Yield the events of a request that continues earlier ones."""
        if is_polled(before):
            async for _ in stream:
                pass  # each poll returns the whole answer: only the additions are new
            for event in catch_up(before.parts, stream.get()):
                yield event
            return
        async for event in stream:
            yield shifted(event, len(before.parts))

    def _complete(self, stream: StreamedResponse) -> ModelResponse:
        """Return the answer of a request that ended; raise if it was cut off."""
        response = self.response
        is_fetched = self._before is not None and is_polled(self._before)
        if is_fetched and stream.get().state == "incomplete":
            name = self.model.model_name
            text = f"the stored answer of the model {name} is not complete, and nobody completes it"
            raise ModelFailed(text, kind="rejected", response=response)
        profiles = (model.profile for model in models_behind(self.model))
        if is_truncated(stream, response, profiles):
            raise ModelStreamTruncated(
                f"the answer of the model {self.model.model_name} was cut off", response=response
            )
        return response

    def _is_still_generated(self, error: Exception) -> bool:
        """Return whether only the connection is lost, and the provider keeps generating the answer."""
        if self._current is None or kind_of(error) != "connection":
            return False
        return self.response.state == "suspended" and is_polled(self.response)

    def _drop_links(self, error: Exception) -> bool:
        """Remove links from the request, one of which may be dead and the cause of the failure.

        Returns whether there were any. A dead link would stay in the conversation for ever.
        """
        if kind_of(error) not in ("unknown", "rejected"):
            return False
        left = without_links(self._messages)
        if left is None:
            return False
        self._messages = left
        return True

    async def _retry_or_raise(self, error: Exception, attempt: int, seen: bool) -> None:
        retry = should_retry(error, attempt=attempt, max_retries=self._max_retries, seen=seen)
        if not retry:
            if isinstance(error, ModelFailed):
                raise error
            response = self.response
            raise ModelFailed(
                f"the model {self.model.model_name} failed: {error}",
                kind=kind_of(error),
                response=response,
                retry_after=retry_after_of(error),
            ) from error
        delay = retry_delay(error, attempt=attempt, chance=self._chance())
        if self._on_retry is not None:
            self._on_retry(error, attempt, delay)
        await self._sleep(delay)

    async def _continue(self, response: ModelResponse, times: int) -> None:
        """Prepare the request for the rest of a suspended answer."""
        if times > (MAX_POLLS if is_polled(response) else MAX_CONTINUATIONS):
            raise ModelFailed(
                f"the model {self.model.model_name} suspended its answer {times} times",
                response=response,
            )
        self._before, self._current = response, None
        delay = self.model.continuation_delay(response)
        if delay:
            await self._sleep(delay)

    async def _sleep(self, delay: float) -> None:
        if self._watch is not None:
            self._watch.pause()
        await asyncio.sleep(delay)
        if self._watch is not None:
            self._watch.start()

    async def _cancel_job(self) -> None:
        """Cancel an answer that the provider generates in the background."""
        source: Any = self._current.get() if self._current is not None else self._before
        if source is not None and source.state == "suspended":
            with suppress(Exception):
                async with asyncio.timeout(CANCEL_TIMEOUT):
                    await self.model.cancel_suspended_response(source)


async def _hang_up(stream: StreamedResponse) -> None:
    """Close the connection of a stream that is no longer read.

    Cancelling a pending read closes it for every provider. Closing the stream does not: google-genai keeps
    its connection until the garbage collector runs.
    """
    reader = asyncio.ensure_future(_read_on(stream))
    for _ in range(HANG_UP_ROUNDS):
        if reader.done():
            return
        await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])


async def _read_on(stream: StreamedResponse) -> None:
    with suppress(Exception):
        async for _ in stream:
            pass
