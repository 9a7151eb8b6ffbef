"""What a tool tells the model besides its result: the content of a `ToolReturn`, in the turn of its call."""

from __future__ import annotations

import logging
from typing import Any

from pydantic_ai.messages import UserPromptPart

from outlast.chat.context.content import as_text

logger = logging.getLogger("outlast.chat")


class ToldByTool(UserPromptPart):
    """It stands where a user's words stand, and no user has said it."""


def told(content: Any) -> list[ToldByTool]:
    """Return what the model is told: nothing if there is nothing, or nothing that a model takes."""
    if content is None or content == "" or content == []:
        return []
    try:
        part = ToldByTool(content)
    except ValueError:
        logger.exception("a tool returned a ToolReturn whose content a model cannot take")
        return []
    if isinstance(part.content, str):
        return [ToldByTool(as_text(part.content))]
    return [ToldByTool([as_text(each) if isinstance(each, str) else each for each in part.content])]
