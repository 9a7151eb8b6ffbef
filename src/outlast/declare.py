"""Declaring an agent without a class.

```python
from outlast import Host, tool
from outlast.declare import agent
from outlast.testing import ScriptedModel

@tool(effect="read")
async def weather(city: str) -> str:
    \"\"\"Current weather in a city.\"\"\"
    return f"sunny in {city}"

Forecaster = agent(
    name="Forecaster",
    model=ScriptedModel.calls("weather", city="Oslo").then("It is sunny."),  # or "anthropic:…"
    prompt="You are a concise forecaster.",
    tools=[weather],
)

async with Host(agents=[Forecaster], store="sqlite:///weather.db") as host:
    turn = await host.get(Forecaster, "alice").save_messages("How is it in Oslo?")
    assert turn.message.text == "It is sunny."
```
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.think import Think

if TYPE_CHECKING:
    from pydantic_ai.models import Model


def agent(
    *,
    model: str | Model,
    prompt: str | None = None,
    tools: Sequence[Any] = (),
    name: str | None = None,
    **more: Any,
) -> type[Think]:
    """A class of chat agents, as if it had been written: `more` are the other settings of `Think`.

    Its name is part of the address of its agents. Without one it is made of the file's: an agent in
    `support_bot.py`, or in `support_bot/agent.py`, is a `SupportBot`.
    """
    where = sys._getframe(1).f_globals
    named = _name_of(where) if name is None else name
    if not named.isidentifier() or named.startswith("_"):
        raise ValueError(f"an agent's class cannot be named {named!r}; give it a name=")
    for setting in more:
        if setting.startswith("_") or not hasattr(Think, setting):
            known = [each for each in dir(Think) if not each.startswith("_")]
            close = get_close_matches(setting, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"Think has no setting {setting!r}{hint}")
    given = list(tools)
    members: dict[str, Any] = {
        "__module__": where.get("__name__", __name__),
        "__doc__": prompt,
        "model": model,
        "system_prompt": prompt,
        **more,
    }
    if given:
        members["get_tools"] = lambda self: list(given)
    return type(named, (Think,), members)


def _name_of(where: dict[str, Any]) -> str:
    path = Path(where.get("__file__") or "Agent")
    stem = path.parent.name if path.stem == "agent" else path.stem
    words = re.split(r"[^0-9A-Za-z]+", stem)
    return "".join(word[:1].upper() + word[1:] for word in words)
