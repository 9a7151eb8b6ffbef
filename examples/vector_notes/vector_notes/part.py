"""The notes of one agent in memory: two tools, a section of the prompt, frames, and HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outlast import ToolCall, tool
from outlast.agent.battery import BatteryPart
from outlast.agent.notices import Broadcast
from outlast.agent.part import Parts
from outlast.agent.receipts import Receipts
from outlast.chat.tools.contribution import Contribution
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.turn import Turn
from outlast.core import json
from vector_notes import tables
from vector_notes.vectors import likeness, packed, unpacked, vector_of

NEAR = 0.2  # notes that are less like what is looked for are not found


@dataclass(frozen=True, slots=True)
class Note:
    id: str
    text: str
    at: int  # milliseconds


class NotesPart(BatteryPart, ChatPart):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._receipts = parts[Receipts]
        self._store = parts.activation.store
        self.count = 0

    async def load(self) -> None:
        ((self.count,),) = await self.activation.fetch(tables.COUNT, self.address)

    # --- notes -----------------------------------------------------------------------------------

    async def keep(self, text: str, turn: str | None = None) -> Note:
        """Keep a note."""
        note = Note(self.activation.ids.new("note"), text, self.activation.clock.now())
        row = (self.address, note.id, text, packed(vector_of(text)), turn, note.at)
        await self.commits.write([(tables.KEEP, row)], lambda: self._counted(1))
        return note

    async def keep_once(self, key: str, text: str, turn: str | None = None) -> Note:
        """Keep a note. A second time with the same key, also after a crash, it is the first one."""
        async with self._receipts.once("notes", key) as receipt:  # note and receipt: one commit
            if not receipt.found:
                receipt.value = asdict(await self.keep(text, turn))
        return Note(**receipt.value)

    async def find(self, query: str, limit: int) -> list[Note]:
        """Return the notes that are most like a text, the nearest first."""
        wanted = vector_of(query)
        found = [
            (likeness(wanted, unpacked(vector)), Note(*row))
            for *row, vector in await self._store.fetch(tables.VECTORS, self.address)
        ]
        near = sorted((each for each in found if each[0] >= NEAR), key=lambda each: -each[0])
        return [note for _, note in near[:limit]]

    async def newest(self, limit: int = 100) -> list[Note]:
        return [Note(*row) for row in await self._store.fetch(tables.NEWEST, self.address, limit)]

    async def forget(self, id: str) -> bool:
        """Delete a note. False: there is none with this id."""
        if not await self._store.fetch(tables.ONE, self.address, id):
            return False
        await self.commits.write([(tables.FORGET, (self.address, id))], lambda: self._counted(-1))
        return True

    def _counted(self, change: int) -> None:
        """What follows once a change is durable: everybody who is connected hears of it."""
        self.count += change
        self.activation.tell(Broadcast(self._frame()))

    # --- a turn ----------------------------------------------------------------------------------

    async def contribute(self, turn: Turn) -> Contribution:
        section = (
            f"You keep notes for the user; there are {self.count}. Find them before you guess."
        )
        return Contribution(tools=[self.remember_note, self.find_notes], sections=[section])

    @tool(effect="idempotent")
    async def remember_note(self, text: str, call: ToolCall) -> dict[str, Any]:
        """Keep a note for later."""
        note = await self.keep_once(call.idempotency_key, text, call.request_id)
        return {"id": note.id}

    @tool(effect="read")
    async def find_notes(self, query: str, limit: int = 5) -> list[str]:
        """Find notes by what they mean."""
        return [note.text for note in await self.find(query, limit)]

    # --- clients ---------------------------------------------------------------------------------

    def _frame(self) -> str:
        return json.encode({"type": "notes", "count": self.count})

    def greeting(self) -> Iterator[str]:
        yield self._frame()

    async def frame(self, connection: Any, frame: dict[str, Any]) -> bool:
        """`{"type": "notes_keep", "id": …, "text": …}`: a client keeps a note; its id makes it one."""
        if frame.get("type") != "notes_keep":
            return False
        id, text = frame.get("id"), frame.get("text")
        if connection.read_only or not (isinstance(id, str) and isinstance(text, str) and text):
            refusal = {"type": "notes_refused", "id": id if isinstance(id, str) else None}
            connection.send(json.encode(refusal))
        else:
            await self.keep_once(f"client {id}"[:500], text)
        return True

    async def request(self, request: Request, rest: str) -> Response | None:
        """`GET …/notes`: the newest ones. `GET …/notes/<id>`: one."""
        if request.method != "GET":
            return None
        if not rest:
            return JSONResponse([asdict(note) for note in await self.newest()])
        found = await self._store.fetch(tables.ONE, self.address, rest)
        return JSONResponse(asdict(Note(*found[0]))) if found else None
