"""Continuing a text in whose middle a turn was interrupted: the request for the rest, and the seam.

The request uses the best way that the model supports (`outlast.chat.model.continuation`). The seam joins the
rest to the stored text without repetition (`outlast.chat.seam`). Once the first new words are shown, events
reach the encoder directly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from outlast.chat.message.encoder import Encoder
from outlast.chat.message.partial import RESET_STEP, Partial
from outlast.chat.model.beginnings import with_continuation
from outlast.chat.model.continuation import (
    Identity,
    Refusals,
    Ways,
    continuation_for,
    identity_of,
    is_prefill_refused,
)
from outlast.chat.model.prefill import (
    instruction,
    last_text,
    prefill_model,
    prefill_settings,
    prefilled,
)
from outlast.chat.seam.prefilled import PrefillSeam, sent_text
from outlast.chat.seam.splice import Splicer, SpliceSettings
from outlast.chat.turn.turn import Turn
from outlast.chat.types.continuation import Continuation, ContinuationWay
from outlast.core.clock import seconds

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

logger = logging.getLogger("outlast.chat")

Show = Callable[[Any], None]
"""Shows one event of the model's stream."""

_TEXTS = ("text", "reasoning")


@dataclass(frozen=True, slots=True)
class RestRequest:
    """The request for the rest of a text."""

    model: Model
    messages: Sequence[ModelMessage]
    settings: ModelSettings
    is_prefilled: bool = False


def splice_settings(wanted: Continuation, can_replace: bool) -> SpliceSettings:
    """Return the settings of the splicer, as configured by the user."""
    return SpliceSettings(
        max_characters=wanted.max_characters,
        max_ms=seconds(wanted.max_delay) * 1000,
        removes_preamble=wanted.removes_preamble,
        may_replace=wanted.may_replace and can_replace,
    )


class ContinuedText:
    """The text in whose middle a step was interrupted, and the rest from the model."""

    def __init__(
        self,
        turn: Turn,
        encoder: Encoder,
        partial: Partial,
        wanted: Continuation,
        refusals: Refusals,
    ) -> None:
        self._turn = turn
        self._encoder = encoder
        self._wanted = wanted
        self._refusals = refusals
        parts = partial.last_step
        self._stored = str(parts[-1]["text"]) if parts and parts[-1].get("type") == "text" else ""
        self._label = f"{partial.steps}a{turn.entry.attempt}"
        self._can_replace = all(part.get("type") in _TEXTS for part in parts)
        self._identity: Identity | None = None
        self._ways: Ways | None = None
        self._way: ContinuationWay | None = None
        self._seam: Splicer | PrefillSeam | None = None
        self._show: Show | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unseen: dict[int, list[Any]] = {}  # events of parts that are not shown
        self._index: int | None = None  # of the text in the response
        self._part: Any = None
        self._taken = 0  # characters of the text passed to the seam
        self._shown: str | None = None  # the shown part of them

    @staticmethod
    def of(
        turn: Turn, encoder: Encoder, partial: Partial, wanted: Continuation, refusals: Refusals
    ) -> ContinuedText | None:
        """Return the text to continue, or None if the step was not interrupted in or after a text."""
        text = ContinuedText(turn, encoder, partial, wanted, refusals)
        return text if text._stored else None

    # --- the request -----------------------------------------------------------------------------

    def request(
        self, model: Model, messages: Sequence[ModelMessage], settings: ModelSettings
    ) -> RestRequest:
        """Return the request for the rest, in the best remaining way."""
        text = last_text(messages)
        if text is None:  # a hook replaced the messages
            self._seam = None
            return RestRequest(model, messages, settings)
        if self._ways is None:
            self._identity = identity_of(model, settings)
            self._ways = continuation_for(
                self._identity, wanted=self._wanted.way, refusals=self._refusals
            )
        prefill = self._ways.prefill if sent_text(text) else None
        if prefill is not None:
            self._way = "prefill"
            is_certain, echoes = prefill.is_certain, prefill.echoes
            self._seam = PrefillSeam(text, echoes=echoes) if is_certain else self._splicer()
            model, settings = prefill_model(model, prefill), prefill_settings(settings, prefill)
            return RestRequest(model, prefilled(messages), settings, is_prefilled=True)
        self._way = "instruct"
        self._seam = self._splicer()
        asked = with_continuation(messages, text=instruction(messages))
        return RestRequest(model, asked, settings)

    def _splicer(self) -> Splicer:
        return Splicer(self._stored, splice_settings(self._wanted, self._can_replace))

    def gives_way(self, failure: Exception) -> bool:
        """Return whether the provider refused this way, so that the next one is tried."""
        if self._way != "prefill" or self._shown is not None or not is_prefill_refused(failure):
            return False
        assert self._ways is not None
        assert self._identity is not None
        logger.warning("%s: %s; asking the model to continue", self._turn.agent, failure)
        self._refusals.add(self._identity, failure)
        self._ways = self._ways.without("prefill", self._refusals.why(self._identity))
        return True

    # --- the seam --------------------------------------------------------------------------------

    async def join(self, events: AsyncIterator[Any], show: Show) -> None:
        """Read events until the first new words are shown, or the stream ends."""
        if self._seam is None:
            return
        self._show = show
        try:
            async for event in events:
                if self._take(event):
                    return
                self._arm()
            if not self._turn.abort.is_set:
                self._finish()
        finally:
            self._disarm()

    def _take(self, event: Any) -> bool:
        """Take an event. Returns whether the texts are joined, so that later events are shown directly."""
        assert self._show is not None
        kind = event.event_kind
        if kind == "part_start" and event.part.part_kind == "text":
            if self._index is not None:  # the text before it had nothing new
                self._unseen[self._index] = []
            self._index, self._part, self._taken = event.index, event.part, 0
            return self._feed(event.part.content)
        if kind == "part_start" and event.part.part_kind == "thinking" and event.part.id is None:
            self._unseen[event.index] = [event]  # showing it would end the open text
        elif kind in ("part_delta", "part_end") and event.index in self._unseen:
            self._unseen[event.index].append(event)
        elif kind == "part_delta" and event.index == self._index:
            return self._feed(event.delta.content_delta or "")
        elif kind == "part_start" and event.part.part_kind != "thinking":
            self._finish()
            if self._shown is None:
                for thought in [each for events in self._unseen.values() for each in events]:
                    self._show(thought)
                self._unseen = {place: [] for place, each in self._unseen.items() if not each}
            self._show(event)
            return True
        elif kind == "part_end" and event.index == self._index:
            self._finish()
            self._show(event)
        else:
            self._show(event)
        return False

    def _feed(self, text: str) -> bool:
        assert self._seam is not None
        self._taken += len(text)
        self._say(self._seam.feed(text, self._now()))
        return self._shown is not None and self._seam.verdict is not None

    def _finish(self) -> None:
        assert self._seam is not None
        self._say(self._seam.finish(self._now()))

    def _tick(self) -> None:
        assert self._seam is not None
        self._timer = None
        self._say(self._seam.tick(self._now()))

    def _say(self, text: str) -> None:
        """Show text that the seam released. The first words continue the stored text, or replace it."""
        assert self._seam is not None
        assert self._show is not None
        verdict = self._seam.verdict
        if verdict is None or not text:
            return
        if self._shown is not None:
            self._shown += text
            self._show(self._delta(text))
            return
        self._shown = text
        self._turn.seam = {
            "way": self._way,
            "kind": verdict.kind,
            "reason": verdict.reason,
            "removed": verdict.removed,
            "held_ms": round(verdict.waited),
        }
        if self._ways is not None and self._ways.why:
            self._turn.seam["why_not_better"] = self._ways.why
        if verdict.kind == "replace":
            self._turn.emit(RESET_STEP)
            self._encoder.resume_step(self._label, None, 0)
        self._show(self._start(text))

    def _start(self, text: str) -> Any:
        from pydantic_ai.messages import PartStartEvent

        assert self._index is not None
        return PartStartEvent(index=self._index, part=replace(self._part, content=text))

    def _delta(self, text: str) -> Any:
        from pydantic_ai.messages import PartDeltaEvent, TextPartDelta

        assert self._index is not None
        return PartDeltaEvent(index=self._index, delta=TextPartDelta(text))

    def _now(self) -> float:
        return asyncio.get_running_loop().time() * 1000

    def _arm(self) -> None:
        """Set a timer, so that the seam decides in time even if the model pauses."""
        self._disarm()
        due = None if self._seam is None else self._seam.due
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due / 1000, self._tick)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the answer ------------------------------------------------------------------------------

    def joined(
        self, messages: list[ModelMessage], response: ModelResponse
    ) -> tuple[list[ModelMessage], ModelResponse]:
        """Return the conversation with the whole answer of this step, and the rest as shown."""
        if self._seam is None:
            return [*messages, response], response
        shown: list[Any] = []
        for index, part in enumerate(cast("Sequence[Any]", response.parts)):
            if index == self._index:
                text = (self._shown or "") + part.content[self._taken :]
                if text:
                    shown.append(replace(part, content=text))
            elif index not in self._unseen:
                shown.append(part)
        rest = replace(response, parts=shown)
        before, last = messages[:-1], cast("ModelResponse", messages[-1])
        verdict = self._seam.verdict
        if verdict is not None and verdict.kind == "replace":
            return [*before, rest], rest
        parts: list[Any] = [*last.parts, *shown]
        place = len(last.parts)
        if len(parts) > place and parts[place - 1].part_kind == parts[place].part_kind == "text":
            joined = replace(parts[place], content=parts[place - 1].content + parts[place].content)
            parts[place - 1 : place + 1] = [joined]
        return [*before, replace(rest, parts=parts)], rest
