"""Failures of turns and requests: logging, events, and the message for clients and callers."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from outlast.agent.part import Parts
from outlast.chat.model.errors import ModelFailed, shown_to_users
from outlast.chat.types import events
from outlast.chat.types.contexts import ChatErrorContext
from outlast.core.errors import OutlastError
from outlast.core.hooks import call_hook
from outlast.core.text import described, storable

logger = logging.getLogger("outlast.chat")


@dataclass(frozen=True, slots=True)
class Failure:
    """A stored error: the message for clients and callers, and the original for operators."""

    shown: str
    detail: str | None = None  # None if `shown` is the original message


def log_failure(agent: str, request_id: str, failure: BaseException) -> None:
    """Log why a turn failed, because users see a message without internals.

    Expected failures, such as a missing key, take one line; others are logged with a traceback.
    """
    cause = failure.__cause__
    is_known = isinstance(failure, OutlastError) and not (
        isinstance(failure, ModelFailed) and failure.kind == "unknown" and cause is not None
    )
    traceback = None if is_known else failure
    logger.error(
        "%s: turn %s failed: %s", agent, request_id, described(failure), exc_info=traceback
    )


async def reported(
    parts: Parts, failure: Exception, context: ChatErrorContext, *, default: str | None = None
) -> Failure:
    """Emit the event, call `on_chat_error`, and return the messages to store.

    Users see the message of the hook's result. If the hook returns None or the error itself, they see
    `default`, or a message without details.
    """
    emit, address = parts.activation.events.emit, parts.activation.address.text
    emit(
        events.ChatRequestFailed,
        address,
        context.request_id or "",
        stage=context.stage,
        messages_persisted=context.messages_persisted,
        error=described(failure),
    )
    if context.stage not in ("parse", "persist"):
        emit(events.MessageFailed, address, context.request_id or "", described(failure))
    shown = ""
    try:
        after = await call_hook(parts.agent.on_chat_error, failure, context)
        if after is not None and after is not failure:
            shown = storable(str(after))
    except Exception:  # a bug in the hook: its message is not for users
        logger.exception("%s: on_chat_error raised", address)
    shown = shown or default or shown_to_users(failure)
    detail = described(failure)
    return Failure(shown, None if detail == f"{type(failure).__name__}: {shown}" else detail)
