"""The chat agent with all batteries. This is the only module that names them."""

from __future__ import annotations

from outlast.chat import think as chat
from outlast.session.battery import HasSession


class Think(HasSession, chat.Think):
    __doc__ = chat.Think.__doc__
