"""A life of outlast without a battery, in a process of its own: `without.py STORE COPY TABLES…`.

The store was written with the battery: its tables have rows of `Talker/t`, which this code knows nothing of.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import sys
from typing import Any

import outlast
from outlast import Host, Think, tool
from outlast.inspect import views
from outlast.store.copier import copy_store
from outlast.testing import ScriptedModel, Step, crash_sweep


class Talker(Think):
    model = ScriptedModel(Step.calls("look"), "I have looked.", by="turn", repeat=True)

    @tool(effect="read")
    async def look(self) -> str:
        """Look."""
        return "seen"


def import_all() -> None:
    """Nothing that is left needs what was taken away."""
    for module in pkgutil.walk_packages(outlast.__path__, "outlast."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


async def drive(host: Any) -> None:
    await host.get(Talker, "t").submit_messages("Look", submission_id="look")
    await host.until_settled()


async def check(outcome: Any) -> None:
    submission = await outcome.host.get(Talker, "t").inspect_submission("look")
    assert submission.status == "completed", submission


async def rows(host: Any, tables: list[str]) -> dict[str, int]:
    found = {each.table: each.rows for each in await views.sizes(host.store)}
    return {table: found[table] for table in tables}


async def open_it(store: str, copy: str, tables: list[str]) -> None:
    """A turn in the old store; a copy of it; and its agent goes with the rows of the battery."""
    async with Host([Talker], store) as host:
        turn = await host.get(Talker, "t").save_messages("Look")
        assert turn.status == "completed", turn
        assert await rows(host, tables) == dict.fromkeys(tables, 1)
    await copy_store(store, copy)
    async with Host([Talker], store) as host:
        await host.get(Talker, "t").destroy()
        assert await rows(host, tables) == dict.fromkeys(tables, 0)
    async with Host([Talker], copy) as host:
        assert len(await host.get(Talker, "t").get_messages()) == 2
        assert await rows(host, tables) == dict.fromkeys(tables, 1)


async def main(store: str, copy: str, *tables: str) -> None:
    await crash_sweep(agents=[Talker], drive=drive, check=check, sample=6)
    await open_it(store, copy, list(tables))


if __name__ == "__main__":
    import_all()
    asyncio.run(main(*sys.argv[1:]))
