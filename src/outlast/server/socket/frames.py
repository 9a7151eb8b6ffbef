"""The frames of the WebSocket protocol, as JSON. Their names are those of the JavaScript clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.core import json
from outlast.server.public import encode

IDENTITY = "cf_agent_identity"
STATE = "cf_agent_state"
STATE_ERROR = "cf_agent_state_error"
MCP = "cf_agent_mcp_servers"
CHAT_REQUEST = "cf_agent_use_chat_request"
CHAT_RESPONSE = "cf_agent_use_chat_response"
MESSAGES = "cf_agent_chat_messages"
MESSAGE_UPDATED = "cf_agent_message_updated"
CANCEL = "cf_agent_chat_request_cancel"
CLEAR = "cf_agent_chat_clear"
RECOVERING = "cf_agent_chat_recovering"
RESUME_REQUEST = "cf_agent_stream_resume_request"
RESUME_ACK = "cf_agent_stream_resume_ack"
RESUMING = "cf_agent_stream_resuming"
PENDING = "cf_agent_stream_pending"
RESUME_NONE = "cf_agent_stream_resume_none"
TOOL_RESULT = "cf_agent_tool_result"
TOOL_APPROVAL = "cf_agent_tool_approval"
RPC = "rpc"


def frame(kind: str, **fields: Any) -> str:
    """Return a frame with these fields, without those that are None."""
    shown = {name: value for name, value in fields.items() if value is not None}
    return encode({"type": kind, **shown})


def identity(name: str, agent: str, limits: dict[str, int], *, state_follows: bool) -> str:
    follows = state_follows or None
    return frame(IDENTITY, name=name, agent=agent, stateFollows=follows, limits=limits)


def state(text: str) -> str:
    """Return the state frame; `text` is JSON."""
    return f'{{"type":"{STATE}","state":{text}}}'


def mcp_servers() -> str:
    empty: dict[str, Any] = {"servers": {}, "tools": [], "prompts": [], "resources": []}
    return frame(MCP, mcp=empty)


def transcript(
    messages: str, *, connect: bool = False, earlier: bool = False, after: str | None = None
) -> str:
    """Return the transcript frame; `messages` are JSON. `earlier`: there are older messages.

    `after`: the messages replace those after the one with this id.
    """
    flags = ',"connect":true' if connect else ""
    flags += ',"earlier":true' if earlier else ""
    flags += "" if after is None else f',"after":{json.encode(after)}'
    return f'{{"type":"{MESSAGES}","messages":{messages}{flags}}}'


def message_updated(message: str) -> str:
    """Return the frame for a changed message, which is JSON."""
    return f'{{"type":"{MESSAGE_UPDATED}","message":{message}}}'


class Responses:
    """Builds the response frames of one request."""

    def __init__(self, id: str, *, continuation: bool) -> None:
        self.id = id
        self._head = f'{{"type":"{CHAT_RESPONSE}","id":{json.encode(id)},"body":'
        self._flags = ',"continuation":true' if continuation else ""

    def chunk(self, seq: int | None, chunk: str, *, replay: bool = False) -> str:
        """Return the frame of a chunk, which is public JSON and is sent as a string.

        `seq` is its position in the stream; None for a transient chunk.
        """
        body = json.encode_text(chunk)
        place = "" if seq is None else f',"seq":{seq}'
        again = ',"replay":true' if replay else ""
        return f'{self._head}{body},"done":false{place}{self._flags}{again}}}'

    def replay_complete(self) -> str:
        flags = f'{self._flags},"replay":true,"replayComplete":true'
        return f'{self._head}"","done":false{flags}}}'

    def done(
        self,
        *,
        outcome: str | None = None,
        message_ids: Sequence[str] = (),
        replay: bool = False,
    ) -> str:
        return self._terminal("", outcome, message_ids, replay=replay)

    def error(self, text: str, *, message_ids: Sequence[str] = ()) -> str:
        """Return the terminal frame of a failed turn."""
        return self._terminal(text, "error", message_ids, error=True)

    def unavailable(self, text: str, retry_after: int) -> str:
        """Return the terminal frame of a request that was not accepted, with the seconds until a retry."""
        return self._terminal(text, "error", (), error=True, retry_after=retry_after)

    def _terminal(
        self,
        body: str,
        outcome: str | None,
        message_ids: Sequence[str],
        *,
        replay: bool = False,
        error: bool = False,
        retry_after: int | None = None,
    ) -> str:
        more = ',"error":true' if error else ""
        more += "" if retry_after is None else f',"retryAfter":{retry_after}'
        more += ',"replay":true' if replay else ""
        if message_ids:
            more += f',"messageIds":{json.encode(list(message_ids))}'
        if outcome is not None:
            more += f',"outcome":{json.encode(outcome)}'
        return f'{self._head}{json.encode(body)},"done":true{self._flags}{more}}}'
