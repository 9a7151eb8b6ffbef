"""What the model is shown of any conversation: grown, summarised, edited, switched, cleared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import CompactionContext, Message, Session, Think, tool
from outlast.session.compaction.overlay import HEADING, Overlay, as_message, covering, cut
from providers.anthropic_messages import Anthropic
from providers.gemini import Gemini
from providers.openai_chat import OpenAIChat
from providers.openai_responses import OpenAIResponses
from support import hosting

ROLES = st.lists(st.sampled_from(["user", "assistant", "assistant"]), min_size=1, max_size=12)
DIALECTS = [Anthropic(), OpenAIChat(), OpenAIResponses(), Gemini()]


def path_of(roles: list[str]) -> list[dict[str, Any]]:
    return [{"id": str(n), "role": role, "parts": []} for n, role in enumerate(roles)]


@given(ROLES, st.lists(st.integers(1, 500), min_size=12, max_size=12), st.integers(1, 2000))
def test_a_cut_keeps_the_last_question_and_begins_with_a_question(
    roles: list[str], sizes: list[int], most: int
) -> None:
    path = path_of(roles)
    tokens = sizes[: len(path)]
    at = cut(path, tokens, most)
    kept = path[at:]
    if "user" not in roles:
        assert at == 0
        return
    assert kept[0]["role"] == "user"
    last = max(n for n, role in enumerate(roles) if role == "user")
    assert at <= last
    assert at == last or sum(tokens[at:]) <= min(most, sum(tokens) // 4)


@given(ROLES, st.lists(st.tuples(st.integers(0, 14), st.integers(1, 9)), max_size=5))
def test_no_message_behind_an_overlay_is_lost(
    roles: list[str], ends: list[tuple[int, int]]
) -> None:
    path = path_of(roles)
    overlays = [Overlay(number, "0", str(last), "s", 0, 0) for last, number in ends]
    found = covering(path, overlays)
    on_path = [each for each in overlays if int(each.last) < len(path) - 1]
    if not on_path:
        assert found is None
        return
    assert found is not None
    overlay, place = found
    furthest = max(int(each.last) for each in on_path)
    assert place == furthest + 1
    assert overlay.number == max(each.number for each in on_path if int(each.last) == furthest)
    shown = [as_message(overlay), *path[place:]]
    assert [each["id"] for each in shown[1:]] == [str(n) for n in range(furthest + 1, len(path))]


class Talker(Think):
    def configure_session(self, session: Session) -> Session:
        def numbered(messages: list[Message], context: CompactionContext) -> str:
            return f"{len(messages)}"

        return session.on_compaction(numbered)

    @tool(effect="read")
    async def look(self) -> str:
        """Look."""
        return "There is nothing to be seen here, but this is said at some length."

    async def compact(self) -> bool:
        return await self.session.compact()


@pytest.mark.parametrize("dialect", DIALECTS, ids=[each.name for each in DIALECTS])
async def test_a_request_with_a_summary_is_valid_for_every_provider(
    sqlite_url: str, dialect: Any
) -> None:
    from providers.dialect import Answer, Call
    from providers.server import running, stream

    call = Answer(text=("I look. ",), calls=(Call("c1", "look", {}),))
    async with running() as server:
        server.replies = [
            stream(dialect.events(each))
            for each in (
                call,
                Answer(text=("Nothing.",)),
                Answer(text=("Yes.",)),
                Answer(text=("Bye.",)),
            )
        ]
        async with dialect.model(server.url) as model:
            members = {"model": model, "__module__": __name__}
            Real = type("Real", (Talker,), members)
            async with hosting(Real, url=sqlite_url) as host:
                agent = host.get(Real, "a")
                await agent.save_messages("Look" * 500)
                await agent.save_messages("And now?")
                assert await agent.compact()
                turn = await agent.save_messages("Bye")
                assert turn.status == "completed", turn.error
        for body in server.bodies:
            dialect.check(body)
        assert HEADING in str(server.bodies[-1])
