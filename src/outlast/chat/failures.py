"""What went wrong in a turn: who is told, and what its users see of it."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from outlast.chat import events
from outlast.chat.hooks import ChatErrorContext, told
from outlast.chat.model_errors import ModelStalled, shown_to_users
from outlast.chat.turn import Turn
from outlast.core.clock import seconds
from outlast.core.events import Events
from outlast.core.text import described, storable

logger = logging.getLogger("outlast.chat")


class Judging(Protocol):
    """What an agent may say about an error."""

    def on_chat_error(self, error: Exception, context: ChatErrorContext) -> Any: ...
    def classify_chat_error(self, error: Exception, context: ChatErrorContext) -> Any: ...


async def judged(
    agent: Judging, turn: Turn, failure: Exception, emitter: Events
) -> tuple[str, str]:
    """What is stored of a failure, and what is shown: as the agent's hooks say."""
    context = ChatErrorContext(turn.request_id, turn.stage)
    try:
        kind = await told(agent.classify_chat_error, failure, context)
    except Exception:
        logger.exception("%s: classify_chat_error raised", turn.agent)
        kind = None
    if kind == "context_overflow":
        context = ChatErrorContext(turn.request_id, turn.stage, classification=kind)
    if isinstance(failure, ModelStalled):
        patience = int(seconds(turn.patience or 0) * 1000)
        emitter.emit(events.StreamStalled, turn.agent, turn.request_id, timeout_ms=patience)
    emitter.emit(
        events.ChatRequestFailed,
        turn.agent,
        turn.request_id,
        stage=turn.stage,
        messages_persisted=True,
        error=described(failure),
    )
    emitter.emit(events.MessageFailed, turn.agent, turn.request_id, described(failure))
    try:
        after = await told(agent.on_chat_error, failure, context)
        shown = storable(str(after))  # its own words, for its users
    except Exception:  # those of a mistake in the hook are for nobody
        logger.exception("%s: on_chat_error raised", turn.agent)
        after = failure
    if after is None or after is failure:
        return described(failure), shown_to_users(failure)
    if isinstance(after, Exception):
        return described(after), shown or shown_to_users(after)
    return shown, shown
