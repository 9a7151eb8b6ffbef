"""The application that `outlast demo` serves; its settings come from the environment."""

from __future__ import annotations

from dataclasses import replace

from outlast.demo import agent
from outlast.demo.local_model import NAME
from outlast.demo.settings import EMBEDDED, LOCAL, DemoSettings
from outlast.server.app import App

wanted = DemoSettings.read()


class Assistant(agent.Assistant):
    """The agent of the demo, as configured."""

    settings = wanted


is_local = wanted.model == LOCAL
name = NAME if is_local else wanted.model
who = "" if wanted.model == EMBEDDED else f" ({name} answers.)"
page = replace(
    agent.PAGE,
    intro=f"{agent.PAGE.intro}{who}",
    suggestions=agent.LOCAL_SUGGESTIONS if is_local else agent.SUGGESTIONS,
    browser_tools=() if is_local else agent.PAGE.browser_tools,
)
app = App(agents=[Assistant], store=f"sqlite:///{wanted.folder}/demo.db", ui=page, inspector=True)
