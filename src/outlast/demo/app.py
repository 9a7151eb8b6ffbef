"""What `outlast demo` serves; its settings come from the environment."""

from __future__ import annotations

from dataclasses import replace

from outlast.demo.agent import PAGE, Assistant
from outlast.demo.settings import EMBEDDED, DemoSettings
from outlast.server.app import App

settings = DemoSettings.read()
Assistant.settings = settings
page = (
    PAGE if settings.model == EMBEDDED else replace(PAGE, intro=f"{PAGE.intro} ({settings.model})")
)
app = App(agents=[Assistant], store=f"sqlite:///{settings.folder}/demo.db", ui=page)
