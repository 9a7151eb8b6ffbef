"""Which messages a client knows: windows, what has changed, older ones, and what is fetched apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from standin import StandIn, ids, message, playing
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket
from tabs import served, stored, until

from outlast.client import CallFailed, Client, Refused
from outlast.client.transcript import Transcript

MESSAGES = "cf_agent_chat_messages"
TOKEN = {"token": "t&1"}
HEADERS = {"authorization": "Bearer x"}


def known(*numbers: int, has_earlier: bool = False) -> Transcript:
    found = Transcript()
    found.show([message(n) for n in numbers], has_earlier=has_earlier)
    return found


def shown(transcript: Transcript) -> tuple[list[str], bool]:
    return ids(transcript.messages), transcript.has_earlier


# --- the list itself -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "window", "earlier", "after"),
    [
        (known(), [1, 2], False, (["m1", "m2"], False)),
        (known(1, 2), [1, 2, 3], False, (["m1", "m2", "m3"], False)),
        (known(1, 2, 3), [2, 3, 4], True, (["m1", "m2", "m3", "m4"], False)),
        (known(1, 2, 3), [2, 3, 4], False, (["m2", "m3", "m4"], False)),
        (known(1, 2, 3, has_earlier=True), [3, 9], True, (["m1", "m2", "m3", "m9"], True)),
        (known(1, 2), [8, 9], True, (["m8", "m9"], True)),
        (known(1, 2), [], False, ([], False)),
    ],
)
def test_a_window_replaces_the_newest_messages_and_keeps_older_ones(
    before: Transcript, window: list[int], earlier: bool, after: Any
) -> None:
    before.show([message(n) for n in window], has_earlier=earlier)
    assert shown(before) == after


@pytest.mark.parametrize(
    ("after", "changed", "expected"),
    [
        ("m2", [9], (["m1", "m2", "m9"], True)),
        ("m3", [4, 5], (["m1", "m2", "m3", "m4", "m5"], True)),
        ("m1", [], (["m1"], True)),
        (None, [7], (["m7"], False)),
    ],
)
def test_what_has_changed_replaces_everything_behind_a_message(
    after: str | None, changed: list[int], expected: Any
) -> None:
    transcript = known(1, 2, 3, has_earlier=True)
    assert transcript.show_after(after, [message(n) for n in changed])
    assert shown(transcript) == expected


def test_a_change_behind_a_message_that_is_not_known_changes_nothing() -> None:
    transcript = known(1, 2)
    assert not transcript.show_after("m8", [message(9)])
    assert shown(transcript) == (["m1", "m2"], False)


def test_a_list_that_somebody_holds_stays_as_it_was() -> None:
    transcript = known(1, 2)
    held = transcript.messages
    transcript.show_after("m2", [message(3)])
    transcript.update(message(1, "new"))
    transcript.prepend([message(0)], before="m1", has_earlier=False)
    assert held == [message(1), message(2)]
    assert transcript.messages == [message(0), message(1, "new"), message(2), message(3)]


def test_older_messages_of_a_list_that_has_changed_meanwhile_are_dropped() -> None:
    transcript = known(5, 6, has_earlier=True)
    assert transcript.prepend([message(1)], before="m4", has_earlier=False) == []
    assert shown(transcript) == (["m5", "m6"], True)


# --- over the wire ---------------------------------------------------------------------------------


def telling(*frames: dict[str, Any]) -> Any:
    """Tell a connection all of that, and then answer calls."""

    async def play(server: StandIn, socket: WebSocket) -> None:
        for frame in frames:
            await server.tell(socket, type=MESSAGES, **frame)
        while True:
            asked = await server.hear(socket)
            await server.tell(socket, type="rpc", id=asked["id"], success=True, result=1)

    return play


async def test_a_client_asks_for_what_has_changed_and_keeps_the_whole_list() -> None:
    first = {"messages": [message(1), message(2)], "connect": True}
    then = {"after": "m2", "messages": [message(3)]}
    async with playing(telling(first, then)) as server:
        async with Client(server.url, "x", "a", query=TOKEN) as client:
            await client.call("x")
            assert client.messages == [message(1), message(2), message(3)]
            assert not client.has_earlier
        assert server.queries[0]["_delta"] == "1"
        assert server.queries[0]["token"] == "t&1"
        assert not server.gets


async def test_earlier_messages_are_loaded_until_there_are_none() -> None:
    window = {"messages": [message(n) for n in (6, 7, 8)], "earlier": True, "connect": True}
    async with playing(telling(window)) as server:
        server.messages = [message(n) for n in range(1, 9)]
        async with Client(server.url, "x", "a", query=TOKEN, headers=HEADERS) as client:
            await client.call("x")
            assert client.has_earlier
            assert ids(await client.load_earlier()) == ["m3", "m4", "m5"]
            assert client.has_earlier
            assert ids(await client.load_earlier()) == ["m1", "m2"]
            assert not client.has_earlier
            assert await client.load_earlier() == []
            assert client.messages == server.messages
        assert [each.query_params["before"] for each in server.gets] == ["m6", "m3"]
        assert {each.query_params["token"] for each in server.gets} == {"t&1"}
        assert {each.headers["authorization"] for each in server.gets} == {"Bearer x"}


async def test_a_client_that_does_not_know_what_has_changed_fetches_the_newest_messages() -> None:
    first = {"messages": [message(1)], "connect": True}
    gap = {"after": "m5", "messages": [message(6)]}
    async with playing(telling(first, gap)) as server:
        server.messages = [message(n) for n in range(1, 7)]
        async with Client(server.url, "x", "a") as client:
            await until(lambda: ids(client.messages) == ["m4", "m5", "m6"])
            assert client.has_earlier


async def test_what_is_told_while_messages_are_fetched_is_not_lost() -> None:
    """The answer to the first request is older than what the socket says meanwhile."""
    sockets: list[WebSocket] = []

    async def play(server: StandIn, socket: WebSocket) -> None:
        sockets.append(socket)
        await server.tell(socket, type=MESSAGES, after="m2", messages=[message(3)])
        await server.hear(socket)

    async with playing(play) as server, Client(server.url, "x", "a") as client:
        server.messages = [message(1), message(2), message(3)]

        async def speak() -> None:
            server.before_answering = None
            server.messages.append(message(4))
            before = client._transcript_frames
            await server.tell(sockets[0], type=MESSAGES, after="m3", messages=[message(4)])
            await until(lambda: client._transcript_frames > before)

        server.before_answering = speak
        await until(lambda: ids(client.messages) == ["m2", "m3", "m4"])
        assert len(server.gets) == 2


async def test_messages_that_cannot_be_fetched_come_with_the_next_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outlast.client.connection.FIRST_RETRY", 0.01)

    async def play(server: StandIn, socket: WebSocket) -> None:
        if len(server.connects) == 1:
            await server.tell(socket, type=MESSAGES, after="m2", messages=[message(3)])
        else:
            await server.tell(socket, type=MESSAGES, messages=[message(1)], connect=True)
        await server.hear(socket)

    async with playing(play) as server, Client(server.url, "x", "a") as client:

        async def fail() -> None:
            raise RuntimeError("not now")

        server.before_answering = fail
        await until(lambda: ids(client.messages) == ["m1"])
        assert len(server.connects) == 2


# --- what is fetched apart -------------------------------------------------------------------------


PATH = "/agents/x/a/chat/content/m1/abc"
OUTPUT = {"type": "outlast-reference", "url": PATH, "size": 9, "mediaType": "application/json"}


async def test_the_content_of_a_reference_is_fetched() -> None:
    async with playing(telling()) as server:
        async with Client(server.url, "x", "a", query=TOKEN, headers=HEADERS) as client:
            server.contents[PATH] = JSONResponse({"rows": [1, None]})
            assert await client.content(OUTPUT) == {"rows": [1, None]}
            file = {"type": "file", "mediaType": "application/json", "url": PATH}
            assert json.loads(await client.content(file)) == {"rows": [1, None]}
            server.contents[PATH] = Response(b"\x89PNG\xff", media_type="image/png")
            assert await client.content({**file, "mediaType": "image/png"}) == b"\x89PNG\xff"
            with pytest.raises(CallFailed, match="must return JSON"):
                await client.content(OUTPUT)
        assert {each.query_params["token"] for each in server.gets} == {"t&1"}
        assert {each.headers["authorization"] for each in server.gets} == {"Bearer x"}


async def test_a_file_that_stands_in_its_url_needs_no_server() -> None:
    async with playing(telling()) as server, Client(server.url, "x", "a") as client:
        assert await client.content({"url": "data:text/plain;base64,SGkh"}) == b"Hi!"
        assert await client.content({"url": "data:,a%20b"}) == b"a b"
        assert not server.gets


@pytest.mark.parametrize("url", ["//evil.example/x", "https://evil.example/x", "x", None])
async def test_credentials_go_to_the_server_of_the_agent_only(url: Any) -> None:
    async with playing(telling()) as server:
        async with Client(server.url, "x", "a", headers=HEADERS) as client:
            with pytest.raises(ValueError, match="must be a path on the server of the agent"):
                await client.content({**OUTPUT, "url": url})


@pytest.mark.parametrize(
    ("status", "error"), [(401, Refused), (404, CallFailed), (500, CallFailed)]
)
async def test_content_that_is_not_given_is_an_error(status: int, error: type[Exception]) -> None:
    async with playing(telling()) as server, Client(server.url, "x", "a") as client:
        server.contents[PATH] = Response(status_code=status)
        with pytest.raises(error, match=str(status)):
            await client.content(OUTPUT)


class Busy(Response):
    """Asks a few times to be asked again."""

    def __init__(self, times: int, wait: str = "0") -> None:
        super().__init__()
        self.times, self.wait = times, wait

    async def __call__(self, *arguments: Any) -> None:
        self.times -= 1
        later = Response(status_code=503, headers={"retry-after": self.wait})
        await (later if self.times >= 0 else JSONResponse("here"))(*arguments)


@pytest.mark.parametrize(
    ("busy", "asked", "found"),
    [
        (Busy(2), 3, "here"),
        (Busy(9), 3, None),
        (Busy(9, "86400"), 1, None),
        (Busy(9, "x"), 1, None),
    ],
    ids=["soon", "never", "much later", "no number"],
)
async def test_a_server_that_asks_to_come_again_is_asked_again(
    busy: Busy, asked: int, found: str | None
) -> None:
    async with playing(telling()) as server, Client(server.url, "x", "a") as client:
        server.contents[PATH] = busy
        if found is None:
            with pytest.raises(CallFailed, match="503"):
                await client.content(OUTPUT)
        else:
            assert await client.content(OUTPUT) == found
        assert len(server.gets) == asked


@pytest.mark.parametrize("base", ["", "/api"])
def test_a_url_is_a_path_with_or_without_the_mount_of_the_server(base: str) -> None:
    client = Client(f"http://host{base}/", "x", "a")
    wanted = f"http://host{base}{PATH}"
    assert client._fetcher._address(PATH) == client._fetcher._address(f"{base}{PATH}") == wanted


# --- a real server ---------------------------------------------------------------------------------


async def test_a_real_server_and_its_client_show_the_same_conversation(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server:
        async with (
            Client(server.http, "fixture-agent", "a") as one,
            Client(server.http, "fixture-agent", "a") as other,
        ):
            for text in ("say 2 words", "Hello", "say 3 words"):
                async for _ in one.send(text):
                    pass
                expected = await stored(server)
                await until(lambda: one.messages == other.messages == expected)  # noqa: B023
            await other.clear()
            await until(lambda: one.messages == other.messages == [])
            assert not one.has_earlier
            assert await one.load_earlier() == []
