"""Nothing but the commit itself blocks the event loop: no file, sleep, connection, process or import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCENARIO = Path(__file__).parent / "blocking.py"


def findings(url: str, *options: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, str(SCENARIO), url, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_storage_large_values_fibers_recovery_alarms_and_eviction_never_block_the_loop(
    sqlite_url: str,
) -> None:
    assert findings(sqlite_url) == ["nothing blocks"]


def test_every_way_to_block_the_loop_is_found_and_named(sqlite_url: str) -> None:
    found = findings(sqlite_url, "blocks")
    for event in ["time.sleep", "open", "socket.connect", "subprocess.Popen", "sqlite3.connect"]:
        assert any(line.startswith(f"{event} ") and "Busy.block" in line for line in found), event
    assert any(line.startswith("import ('colorsys',)") for line in found)
    (read,) = [line for line in found if line.startswith("a read of ")]
    assert "Busy.read_on_the_loop" in read
    assert all("Busy." in line for line in found), found
