"""Failures of turns and requests: who is notified, and which text clients and callers get."""

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
    """An error as it is stored: the text for clients and callers, and the original for operators."""

    shown: str
    detail: str | None = None  # None: `shown` is the original text


def log_failure(agent: str, request_id: str, failure: BaseException) -> None:
    """The reason why a turn failed: whoever chats sees a text without internals.

    One line for what is known to go wrong, such as a key that is missing; the traceback for anything else.
    """
    cause = failure.__cause__
    is_known = isinstance(failure, OutlastError) and not (
        isinstance(failure, ModelFailed) and failure.kind == "unknown" and cause is not None
    )
    told = described(failure)
    logger.error(
        "%s: turn %s failed: %s", agent, request_id, told, exc_info=None if is_known else failure
    )


async def reported(
    parts: Parts, failure: Exception, context: ChatErrorContext, *, default: str | None = None
) -> Failure:
    """Emit the event, ask `on_chat_error`, and return the texts to store.

    The text of what the hook returns is shown. If it returns None or the error itself, `default` is, or a
    text without any details.
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
    except Exception:  # a mistake in the hook: its text is not meant for users
        logger.exception("%s: on_chat_error raised", address)
    shown = shown or default or shown_to_users(failure)
    detail = described(failure)
    return Failure(shown, None if detail == f"{type(failure).__name__}: {shown}" else detail)
