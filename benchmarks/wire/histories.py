"""Conversations that are large before anybody connects, written through the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

KB, MB = 1024, 1024 * 1024
AT_ONCE = 20  # messages that are stored in one commit
NAME = "large"  # of the agent that has the conversation

Message = dict[str, Any]


def words(size: int, n: int) -> str:
    """Text of so many bytes, of which no two messages have the same."""
    sentence = f"This is message {n}. "
    return (sentence * (size // len(sentence) + 1))[:size]


def said(n: int, text: str) -> Message:
    role = "user" if n % 2 == 0 else "assistant"
    return {"id": f"m{n}", "role": role, "parts": [{"type": "text", "text": text}]}


def looked_up(n: int, size: int) -> Message:
    """An answer with a tool's output of so many bytes."""
    part = {
        "type": "tool-look",
        "toolCallId": f"c{n}",
        "state": "output-available",
        "input": {"n": n},
        "output": {"found": words(size, n)},
    }
    return {"id": f"m{n}", "role": "assistant", "parts": [part, {"type": "text", "text": "Here."}]}


def outputs() -> Iterator[Message]:
    """50 MB in 100 messages: 50 answers with a tool's output of 1 MB each."""
    for n in range(100):
        yield said(n, "Look it up.") if n % 2 == 0 else looked_up(n, MB)


def pages() -> Iterator[Message]:
    """50 MB in 500 messages of 100 KB."""
    return (said(n, words(100 * KB, n)) for n in range(500))


def many() -> Iterator[Message]:
    """10,000 messages of 100 bytes."""
    return (said(n, words(100, n)) for n in range(10_000))


def middling() -> Iterator[Message]:
    """5 MB in 50 messages of 100 KB."""
    return (said(n, words(100 * KB, n)) for n in range(50))


HISTORIES: dict[str, Callable[[], Iterator[Message]]] = {
    "outputs": outputs,
    "pages": pages,
    "many": many,
    "middling": middling,
}


async def write(path: Path, history: str) -> None:
    """Store a conversation for the server that starts on this file next."""
    from outlast import Host, Think

    class Chat(Think):
        pass

    async with Host([Chat], f"sqlite:///{path}?synchronous=off") as host:
        agent = host.get(Chat, NAME)
        some: list[Message] = []
        for message in HISTORIES[history]():
            some.append(message)
            if len(some) == AT_ONCE:
                await agent.add_messages(some)
                some = []
        if some:
            await agent.add_messages(some)
