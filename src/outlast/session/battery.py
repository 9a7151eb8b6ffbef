"""The session battery, and the base class that gives it to chat agents."""

from __future__ import annotations

from outlast.agent.battery import Battery
from outlast.chat.think import Think
from outlast.core.hooks import defaults, hook
from outlast.session.builder import Session
from outlast.session.live import LiveSession
from outlast.session.part import SessionPart
from outlast.session.tables import SCHEMA

BATTERY = Battery(
    name="session",
    part=SessionPart,
    schema=SCHEMA,
    paths=("search",),
    views="outlast.session.views:VIEWS",
    commands="outlast.session.commands:app",
)


@defaults
class HasSession(Think):
    """A chat agent with a session: context blocks, compaction and search."""

    battery = BATTERY

    @hook
    async def configure_session(self, session: Session) -> Session:
        """Called once, when the agent starts, to configure what the model sees and remembers."""
        return session

    @property
    def session(self) -> LiveSession:
        """The session of this agent."""
        return self._parts[SessionPart].live
