"""The smallest chat agent. Serve it, talk to it, kill it, start it again.

outlast serve examples/minimal.py
outlast chat Assistant alice
"""

from outlast import Think, tool
from outlast.demo.model import EmbeddedModel


class Assistant(Think):
    model = EmbeddedModel(pace=0.05)  # no key; or "openai:gpt-5", …
    system_prompt = "You are a friendly assistant."

    @tool(effect="read")
    async def weather(self, city: str) -> str:
        """Current weather in a city."""
        return f"sunny in {city}"
