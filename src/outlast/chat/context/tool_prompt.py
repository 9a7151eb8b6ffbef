"""Prompts from tools: the `content` of a `ToolReturn`, which the model sees in the turn of its call."""

from __future__ import annotations

import logging
from typing import Any

from pydantic_ai.messages import UserPromptPart

from outlast.chat.context.content import as_text

logger = logging.getLogger("outlast.chat")


class ToolPrompt(UserPromptPart):
    """A prompt in the place of a user's, but from a tool."""


def tool_prompts(content: Any) -> list[ToolPrompt]:
    """Return the prompt of a tool; empty if there is none, or if its content is invalid."""
    if content is None or content == "" or content == []:
        return []
    try:
        part = ToolPrompt(content)
    except ValueError:
        logger.exception("a tool returned a ToolReturn with invalid content")
        return []
    if isinstance(part.content, str):
        return [ToolPrompt(as_text(part.content))]
    return [ToolPrompt([as_text(each) if isinstance(each, str) else each for each in part.content])]
