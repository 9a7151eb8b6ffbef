"""What the inspector shows of notes. Imported when somebody looks."""

from __future__ import annotations

from outlast.inspect.battery_views import Column, Detail, View
from outlast.store.operations import Query

VIEWS = [
    View(
        title="Notes",
        columns=[
            Column("Note", "code"),
            Column("Text"),
            Column("Turn", "turn"),
            Column("Vector", "size"),
            Column("Kept", "time"),
        ],
        query=Query.same(
            """
            SELECT id, text, turn, length(vector), at FROM notes_kept
            WHERE agent = ? ORDER BY at DESC, id DESC LIMIT ?
            """
        ),
        detail=Detail(
            columns=[
                Column("Kept", "time"),
                Column("Turn", "turn"),
                Column("Text"),
                Column("Vector", "code"),
            ],
            query=Query.same(
                "SELECT at, turn, text, vector FROM notes_kept WHERE agent = ? AND id = ?"
            ),
        ),
        none="It has kept no notes.",
    )
]
