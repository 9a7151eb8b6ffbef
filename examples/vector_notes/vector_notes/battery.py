"""The battery as data, and the base class that gives it to an agent."""

from __future__ import annotations

from outlast import Agent
from outlast.agent.agent import parts_of
from outlast.agent.battery import Battery
from vector_notes import tables
from vector_notes.part import Note, NotesPart

BATTERY = Battery(
    name="notes",
    part=NotesPart,
    schema=tables.SCHEMA,
    first_reads=(tables.COUNT,),
    operators=("forget_note",),
    views="vector_notes.views:VIEWS",
    commands="vector_notes.commands:app",
)


class HasNotes(Agent):
    """`class Assistant(HasNotes, Think)`: an assistant that keeps notes."""

    battery = BATTERY

    async def keep_note(self, text: str, *, key: str | None = None) -> Note:
        """Keep a note. With a key, a second call returns the first one's note."""
        part = parts_of(self)[NotesPart]
        return await (part.keep(text) if key is None else part.keep_once(f"own {key}", text))

    async def find_notes(self, query: str, limit: int = 5) -> list[Note]:
        """Return the notes that are most like a text, the nearest first."""
        return await parts_of(self)[NotesPart].find(query, limit)

    async def forget_note(self, id: str) -> bool:
        """Delete a note; operators may, too. False: there is none with this id."""
        return await parts_of(self)[NotesPart].forget(id)
