"""The file watcher of `outlast dev`: a separate process that signals the supervisor when files change.

It is not a thread of the supervisor, which forks its workers and must have only one thread. It ends with the
supervisor, which holds the other end of its stdin.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from outlast.cli.serving.processes import RELOAD

MORE = (".md", ".toml", ".txt", ".yaml", ".yml")  # other files that agents are made of


def watched(target: str) -> list[Path]:
    """Return the folders to watch."""
    path = Path(target.partition(":")[0])
    if path.is_dir():
        return [path.resolve()]
    if path.suffix == ".py":
        return [path.resolve().parent]
    return [Path.cwd()]


def start(paths: Sequence[Path]) -> subprocess.Popen[bytes]:
    """Start the watcher as another process, on behalf of this one."""
    command = [sys.executable, "-P", "-m", "outlast.cli.serving.watch", str(os.getpid())]
    return subprocess.Popen(
        [*command, *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        process_group=0,
    )


def main(arguments: Sequence[str]) -> None:
    """Signal a supervisor to reload whenever a file below these folders changes."""
    from watchfiles import PythonFilter, watch

    pid, paths = int(arguments[0]), arguments[1:]
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    wanted = PythonFilter(extra_extensions=MORE)
    for changes in watch(*paths, watch_filter=wanted, stop_event=ended, raise_interrupt=False):
        names = sorted({_relative(path) for _, path in changes})
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        sys.stderr.write(f"outlast: {names[0]}{more} changed\n")
        sys.stderr.flush()
        try:
            os.kill(pid, RELOAD)
        except ProcessLookupError:
            return


def _relative(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


if __name__ == "__main__":
    main(sys.argv[1:])
