"""The settings of the demo. Workers receive them in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PREFIX = "OUTLAST_DEMO_"
PACE = 0.085  # seconds per word: reading speed
KEYS = {  # by key variable: the model to use
    "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5",
    "OPENAI_API_KEY": "openai:gpt-5-mini",
    "GOOGLE_API_KEY": "google:gemini-2.5-flash",
    "GEMINI_API_KEY": "google:gemini-2.5-flash",
}
EMBEDDED = "embedded"
LOCAL = "local"


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """`model` is a name of Pydantic AI's, "embedded", or "local", which `url` serves."""

    model: str = EMBEDDED
    folder: Path = Path(".outlast")
    pace: float = PACE
    url: str = ""

    def variables(self) -> dict[str, str]:
        """Return the environment variables for the workers."""
        return {
            f"{PREFIX}MODEL": self.model,
            f"{PREFIX}FOLDER": str(self.folder),
            f"{PREFIX}PACE": str(self.pace),
            f"{PREFIX}URL": self.url,
        }

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Self:
        given = os.environ if variables is None else variables
        return cls(
            given.get(f"{PREFIX}MODEL") or EMBEDDED,
            Path(given.get(f"{PREFIX}FOLDER") or ".outlast"),
            float(given.get(f"{PREFIX}PACE") or PACE),
            given.get(f"{PREFIX}URL") or "",
        )


def model_for(wanted: str | None, variables: Mapping[str, str]) -> str:
    """Return the model to use: the requested one, one whose key is set, or the embedded one."""
    if wanted:
        return wanted
    return next((model for key, model in KEYS.items() if variables.get(key)), EMBEDDED)
