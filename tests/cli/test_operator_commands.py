"""`outlast incidents`, `cancel` and `release`: through a host, without one, and with one in the way."""

from __future__ import annotations

import asyncio

from commands import beside

from outlast import ChatRecovery, Think
from outlast.chat.recovery.incidents import _STRIKE
from outlast.host.address import Address
from outlast.inspect import views
from outlast.store.url import file_of
from outlast.testing import ScriptedModel, Step
from support import hosting


class Silent(Think):
    model = ScriptedModel(Step.text("Well ") + Step.stalls(), by="request", repeat=True)


class Broken(Think):
    """Gives up at once, and answers when it is asked again."""

    model = ScriptedModel(
        Step.text("Well ") + Step.stalls(),
        Step.stalls(),
        "At last.",
        by="request",
    )
    chat_stream_stall_timeout = 0.05
    chat_recovery = ChatRecovery(max_attempts=1, terminal_message="No.")


ADDRESS = Address.of("Silent", "s")


async def interrupt(url: str, id: str = "hm") -> None:
    """Leave a turn behind that was interrupted."""
    async with hosting(Silent, url=url, shutdown_timeout=0) as host:
        await host.get(Silent, "s").submit_messages("Hm?", submission_id=id)
        while not await views.chunks(host.store, ADDRESS, id):
            await asyncio.sleep(0.01)


async def test_an_incident_is_sealed_through_the_host_that_runs(store_url: str) -> None:
    await interrupt(store_url)
    async with hosting(Silent, url=store_url, life="2", admin=True) as host:
        while not await views.incidents(host.store):
            await asyncio.sleep(0.01)
        listed = (await beside("incidents", "list", "--store", store_url, "--json")).json
        assert [(each["turn"], each["state"], each["row"]) for each in listed] == [
            ("hm", "open", 17)
        ]
        assert "deploy" in (await beside("incidents", "list", "--store", store_url)).out
        sealed = await beside("incidents", "seal", "hm", "--store", store_url, "--json")
        assert sealed.json == {"agent": "Silent/s", "turn": "hm", "sealed": True, "by_host": True}
        await host.until_settled()
        assert (await views.turns(host.store))[0].outcome == "aborted"
        again = await beside("incidents", "seal", "hm", "--store", store_url)
        assert (again.code, again.err) == (1, "outlast: hm of Silent/s has already ended.\n")


async def test_a_turn_is_cancelled_through_the_host_or_in_its_place(sqlite_url: str) -> None:
    await interrupt(sqlite_url)
    told = await beside("cancel", "hm", "--store", sqlite_url)
    assert told.out.strip() == (
        "Cancelled hm of Silent/s. No host has this store open; it takes effect with the next one."
    )
    async with hosting(Silent, url=sqlite_url, life="2", admin=True) as host:
        await host.until_settled()
        assert (await views.turns(host.store))[0].outcome == "aborted"
        await host.get(Silent, "s").submit_messages("And now?", submission_id="now")
        told = await beside("cancel", "now", "--store", sqlite_url)
        assert told.out.strip() == "Cancelled now of Silent/s."
        await host.until_settled()


async def test_a_host_without_an_admin_socket_is_in_the_way_and_named(sqlite_url: str) -> None:
    async with hosting(Silent, url=sqlite_url, shutdown_timeout=0) as host:
        await host.get(Silent, "s").submit_messages("Hm?", submission_id="hm")
        told = await beside("cancel", "hm", "--store", sqlite_url)
    assert told.code == 1
    assert "is in use by process" in told.err
    assert "Host(admin=True)" in told.err


async def test_postgresql_without_a_host_here_is_written_only_when_told_to(
    postgres_url: str,
) -> None:
    await interrupt(postgres_url)
    told = await beside("cancel", "hm", "--store", postgres_url)
    assert told.code == 1
    assert "--direct" in told.err
    assert (await beside("cancel", "hm", "--store", postgres_url, "--direct")).code == 0
    async with hosting(Silent, url=postgres_url, life="2") as host:
        await host.until_settled()
        assert (await views.turns(host.store))[0].outcome == "aborted"


async def test_what_was_given_up_is_tried_again(sqlite_url: str) -> None:
    async with hosting(Broken, url=sqlite_url, admin=True) as host:
        turn = await host.get(Broken, "b").save_messages("Hi")
        assert turn.error == "No."
        told = await beside("incidents", "retry", turn.request_id, "--store", sqlite_url)
        assert told.code == 0, told.err
        assert told.out.splitlines()[-1] == "At last."
        unknown = await beside("incidents", "retry", "nobody", "--store", sqlite_url)
        assert (unknown.code, "no turn 'nobody' in this store" in unknown.err) == (1, True)


async def test_a_stuck_agent_is_released(sqlite_url: str) -> None:
    async with hosting(Silent, url=sqlite_url, shutdown_timeout=0) as host:
        await host.get(Silent, "s").add_messages("Hm?")
    from outlast.inspect.offline import offline

    async with offline(sqlite_url) as writer:
        for _ in range(4):  # one with others, three alone
            await writer._commit(ADDRESS, [(_STRIKE, (ADDRESS.text, 1))])
    shown = await beside("inspect", "agent", "silent", "s", "--store", sqlite_url)
    assert "stuck" in shown.out
    assert "outlast release 'Silent/s'" in shown.out
    told = await beside("release", "silent", "s", "--store", sqlite_url)
    assert told.out.startswith("Released Silent/s.")
    again = await beside("release", "silent", "s", "--store", sqlite_url)
    assert again.out.strip() == "Silent/s was not stuck."
    async with hosting(Silent, url=sqlite_url, life="2", admin=True):
        through = await beside("release", "Silent/s", "--store", sqlite_url, "--json")
        assert through.json == {"agent": "Silent/s", "released": True, "by_host": True}
    path = file_of(sqlite_url)
    assert path is not None
    assert not path.with_name(path.name + ".sock").exists()
