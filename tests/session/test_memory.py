"""What an agent remembers: context blocks in its prompt, across turns and processes."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import BareThink, Session, Think
from outlast.testing import ScriptedModel, Step
from support import World


def assistant(*steps: Any, configure: Any, **members: Any) -> type[Any]:
    model = ScriptedModel(*(steps or ("Hello.",) * 9), by="request")

    def configure_session(self: Any, session: Session) -> Session:
        result: Session = configure(session)
        return result

    return type(
        "Assistant", (Think,), {"model": model, "configure_session": configure_session, **members}
    )


def memory(session: Session) -> Session:
    return session.with_context("memory", description="Learned facts", max_tokens=50)


def systems(agent_class: Any) -> list[str]:
    """The system prompt of each request."""
    return [request.instructions for request in agent_class.model.requests]


async def test_the_model_writes_a_fact_and_knows_it_in_the_next_life(world: World) -> None:
    write = Step.call("set_context", {"label": "memory", "content": "Alice likes owls."})
    Assistant = assistant(write, "Noted.", "You like owls.", configure=memory)
    host = await world.host(Assistant)
    turn = await host.get(Assistant, "a").save_messages("I like owls.")
    assert turn.status == "completed", turn.error
    (call,) = [part for part in turn.message.parts if part["type"] == "tool-set_context"]
    assert call["output"] == "Written to memory. Usage: 10% (5 of 50 tokens)."
    await world.kill()
    host = await world.next_life()
    await host.get(Assistant, "a").save_messages("What do I like?")
    first, *_, last = systems(Assistant)
    assert "MEMORY (Learned facts) [0% — 0/50 tokens] [writable]" in first
    assert "Alice likes owls." in last


async def test_a_written_block_changes_the_prompt_only_when_it_is_refreshed(
    sqlite_world: World,
) -> None:
    Assistant = assistant(configure=memory)
    seen: list[Any] = []

    class Learner(Assistant):  # type: ignore[misc, valid-type]
        async def learn(self, fact: str) -> None:
            await self.session.append_context_block("memory", fact)
            seen.append(await self.session.system_prompt())

        async def refresh(self) -> str:
            return str(await self.session.refresh_system_prompt())

    host = await sqlite_world.host(Learner)
    agent = host.get(Learner, "b")
    await agent.save_messages("One")
    await agent.learn("First.")
    await agent.learn("Second.")
    await agent.save_messages("Two")
    assert "First." not in systems(Assistant)[-1]
    assert seen[0] == seen[1]
    assert "First.\nSecond." in await agent.refresh()
    await agent.save_messages("Three")
    assert "First.\nSecond." in systems(Assistant)[-1]


async def test_with_blocks_the_prompt_of_the_agent_is_left_out(sqlite_world: World) -> None:
    """`get_system_prompt` is for agents without blocks; `with_system_prompt` stands before them."""
    Bare = assistant(configure=memory, system_prompt="Be brief.")
    With = assistant(
        configure=lambda session: memory(session).with_system_prompt("Be kind."), system_prompt="No"
    )
    host = await sqlite_world.host(Bare)
    await host.get(Bare, "a").save_messages("Hi")
    host = await sqlite_world.next_life(With)
    await host.get(With, "b").save_messages("Hi")
    assert "Be brief." not in systems(Bare)[0]
    assert systems(With)[0].startswith("Be kind.\n\n══")


async def test_a_block_that_cannot_be_read_does_not_fail_the_turn(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> str:
        raise OSError("the disk is gone")

    Assistant = assistant(
        configure=lambda session: memory(session).with_context("docs", provider=broken)
    )
    host = await sqlite_world.host(Assistant)
    turn = await host.get(Assistant, "a").save_messages("Hi")
    assert turn.status == "completed", turn.error
    assert "[docs could not be read: " in systems(Assistant)[0]
    assert "MEMORY" in systems(Assistant)[0]
    assert any("could not be read" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("configure", "error"),
    [
        (lambda session: memory(memory(session)), "two context blocks 'memory'"),
        (lambda session: session.with_context("docs", provider=object()), "must have get()"),
        (
            lambda session: session.with_context("docs", when_changed="never"),
            "when_changed of 'docs'",
        ),
        (lambda session: session.with_context("my docs"), "the label of a context block must be"),
        (lambda session: session.compact_after(1000), "compact_after() needs a function"),
        (lambda session: session.compact_after(0), "tokens must be a positive int, got 0"),
        (lambda session: "session", "configure_session must return a Session, got 'session'"),
    ],
)
async def test_what_is_wrong_with_a_session_is_said_at_the_start(
    sqlite_world: World, configure: Any, error: str
) -> None:
    Assistant = assistant(configure=configure)
    host = await sqlite_world.host(Assistant)
    with pytest.raises(
        Exception, match="configure|context|provider|label|tokens|when_changed"
    ) as raised:
        await host.get(Assistant, "a").save_messages("Hi")
    chain, texts = raised.value, []
    while chain is not None:
        texts.append(str(chain))
        chain = chain.__cause__  # type: ignore[assignment]
    assert any(error in text for text in texts), texts


async def test_a_volatile_block_rides_behind_the_conversation(sqlite_world: World) -> None:
    now = ["Monday"]
    Assistant = assistant(
        configure=lambda session: session.with_context(
            "day", provider=lambda: now[0], when_changed="remind"
        )
    )
    host = await sqlite_world.host(Assistant)
    agent = host.get(Assistant, "a")
    await agent.save_messages("One")
    now[0] = "Tuesday"
    await agent.save_messages("Two")
    await agent.save_messages("Three")
    first, second, third = Assistant.model.requests
    assert first.instructions == second.instructions == third.instructions
    assert "Monday" in first.instructions

    def prompts(request: Any) -> list[str]:
        return [str(part.content) for message in request.messages for part in message.parts]

    assert not any("has changed" in text for text in prompts(first))
    assert prompts(second)[-1].endswith("Tuesday")
    assert sum("Tuesday" in text for text in prompts(third)) == 1, "reminders are not stored"


async def test_blocks_can_be_added_and_removed_while_the_agent_runs(world: World) -> None:
    class Assistant(Think):
        model = ScriptedModel(*["Hello."] * 9)

        async def add(self) -> None:
            await self.session.add_context("notes", description="User notes")
            await self.session.replace_context_block("notes", "Remember the milk.")
            await self.session.refresh_system_prompt()

        async def drop(self) -> bool:
            found = await self.session.remove_context("notes")
            await self.session.refresh_system_prompt()
            return found

        async def labels(self) -> list[str]:
            return [block.label for block in await self.session.get_context_blocks()]

    host = await world.host(Assistant)
    await host.get(Assistant, "a").add()
    await host.get(Assistant, "a").save_messages("Hi")
    assert "Remember the milk." in Assistant.model.requests[-1].instructions
    host = await world.next_life()
    assert await host.get(Assistant, "a").labels() == ["notes"]
    await host.get(Assistant, "a").save_messages("Hi")
    assert "Remember the milk." in Assistant.model.requests[-1].instructions
    assert await host.get(Assistant, "a").drop()
    assert not await host.get(Assistant, "a").drop()
    host = await world.next_life()
    assert await host.get(Assistant, "a").labels() == []


async def test_an_entry_that_is_unloaded_leaves_what_the_model_sees(sqlite_world: World) -> None:
    class Docs:
        def get(self) -> dict[str, str]:
            return {"owls": "About owls"}

        def load(self, key: str) -> str | None:
            return "Owls hunt at night. " * 20 if key == "owls" else None

    entry = {"label": "docs", "key": "owls"}
    Assistant = assistant(
        *(Step.call("load_context", entry), "They hunt at night."),
        *(Step.call("unload_context", entry), "Forgotten."),
        "Bye.",
        configure=lambda session: session.with_context("docs", provider=Docs()),
    )
    host = await sqlite_world.host(Assistant)
    agent = host.get(Assistant, "a")
    for text in ("Owls?", "Enough.", "Bye"):
        assert (await agent.save_messages(text)).status == "completed"
    seen = [
        str(part.content)
        for message in Assistant.model.requests[-1].messages
        for part in message.parts
        if part.part_kind == "tool-return"
    ]
    assert seen[0] == "[owls of docs was unloaded; load it again if you need it]"
    stored = (await agent.get_messages())[1].parts
    assert any("Owls hunt" in str(part.get("output")) for part in stored), (
        "the message is unchanged"
    )


async def test_an_entry_that_is_loaded_again_is_seen_again(sqlite_world: World) -> None:
    class Docs:
        def load(self, key: str) -> str:
            return "Owls hunt at night. " * 20

    entry = {"label": "docs", "key": "owls"}
    load, unload = Step.call("load_context", entry), Step.call("unload_context", entry)
    Assistant = assistant(
        *(load, unload, load, "They hunt at night.", "Bye."),
        configure=lambda session: session.with_context("docs", provider=Docs()),
    )
    host = await sqlite_world.host(Assistant)
    for text in ("Owls?", "Bye"):
        assert (await host.get(Assistant, "a").save_messages(text)).status == "completed"
    first, _, second = [
        str(part.content)
        for message in Assistant.model.requests[-1].messages
        for part in message.parts
        if part.part_kind == "tool-return"
    ]
    assert first.startswith("[owls of docs was unloaded")
    assert second.startswith("Owls hunt")


async def test_a_block_that_could_not_be_read_is_read_again_for_the_next_turn(
    sqlite_world: World,
) -> None:
    broken = [True]

    def docs() -> str:
        if broken:
            raise OSError("the disk is gone")
        return "All is well."

    Assistant = assistant(
        configure=lambda session: session.with_context("docs", provider=docs).with_cached_prompt()
    )
    host = await sqlite_world.host(Assistant)
    await host.get(Assistant, "a").save_messages("Hi")
    host = await sqlite_world.next_life()
    broken.clear()
    await host.get(Assistant, "a").save_messages("Hi")
    assert ["could not be read" in each for each in systems(Assistant)] == [True, False]
    assert "All is well." in systems(Assistant)[-1]


async def test_an_agent_without_a_session_asks_the_store_for_nothing(sqlite_world: World) -> None:
    counts = {}
    for base in (BareThink, Think):
        agent_class = type(
            f"Plain{base.__module__.split('.')[1]}", (base,), {"model": ScriptedModel("Hi.")}
        )
        host = await sqlite_world.next_life(agent_class)
        before = host.store.statistics()
        await host.get(agent_class, "a").save_messages("Hi")
        after = host.store.statistics()
        counts[base] = [
            getattr(after, name) - getattr(before, name)
            for name in ("reads", "commits", "operations")
            if hasattr(after, name)
        ]
    assert counts[BareThink] == counts[Think]
    assert counts[Think]
