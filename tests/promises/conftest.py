"""What the promises share: processes that start quickly."""

from __future__ import annotations

import subprocess

import pytest

import forked


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a Python for this test gets a fork that need not import outlast."""
    monkeypatch.setattr(subprocess, "Popen", forked.Popen)
