"""The other side of `process.Worker`: runs agents in a process that is meant to be killed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from outlast.host.life.host import Host
from outlast.store.base import StoreOptions
from outlast.store.operations import Batch
from outlast.store.url import open_store


class KillAt:
    """Kills this very process, with SIGKILL, at its n-th commit."""

    def __init__(self, moment: str, commit: int) -> None:
        self._moment = moment
        self._commit = commit
        self._commits = 0

    def before_commit(self, batches: Sequence[Batch]) -> None:
        if self._moment == "before" and self._commits + 1 == self._commit:
            os.kill(os.getpid(), signal.SIGKILL)

    def after_commit(self, batches: Sequence[Batch]) -> None:
        self._commits += 1
        if self._moment == "after" and self._commits == self._commit:
            os.kill(os.getpid(), signal.SIGKILL)


def load(reference: str) -> Any:
    """The object that `path::module::name` refers to."""
    path, module_name, name = reference.split("::")
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        sys.path.insert(0, os.path.dirname(path))
        spec.loader.exec_module(module)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


async def main(order: dict[str, Any]) -> None:
    agents = [load(reference) for reference in order["agents"]]
    drive = load(order["drive"])
    kill_at = order["kill_at"]
    probe = KillAt(kill_at[0], kill_at[1]) if kill_at else None
    store = await open_store(order["store"], StoreOptions(probe=probe))
    async with Host(agents, store) as host:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await drive(host, *order["arguments"])
        await host.until_settled()


def end_with_the_parent() -> None:
    """Whoever started this has its other end of stdin. When that closes, nobody is left to kill it."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    asyncio.run(main(json.loads(sys.argv[1])))
