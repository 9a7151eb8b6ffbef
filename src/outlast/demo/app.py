"""What `outlast demo` serves; its settings come from the environment."""

from __future__ import annotations

from dataclasses import replace

from outlast.demo import agent
from outlast.demo.settings import EMBEDDED, DemoSettings
from outlast.server.app import App

wanted = DemoSettings.read()


class Assistant(agent.Assistant):
    """The same, as it was asked for."""

    settings = wanted


who = "" if wanted.model == EMBEDDED else f" ({wanted.model} answers.)"
page = replace(agent.PAGE, intro=f"{agent.PAGE.intro}{who}")
app = App(agents=[Assistant], store=f"sqlite:///{wanted.folder}/demo.db", ui=page, inspector=True)
