"""The Chromium of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def chromium() -> str:
    """The path of a Chromium, installed if that is possible; a failure says what to install."""
    names = (os.environ.get("OUTLAST_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    for name in names:
        if name and (path := shutil.which(name)):
            return path
    found = subprocess.run([ROOT / "script/chromium"], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.fail(found.stderr.strip(), pytrace=False)
    return found.stdout.strip()
