"""Several reads in one round trip."""

from __future__ import annotations

from rows import fence, opened, put

from outlast.store.operations import Query

VALUES = Query.same("SELECT key, value FROM storage WHERE agent = ? AND key <> ? ORDER BY key DESC")
COUNT = Query.same("SELECT count(*) FROM storage WHERE agent = ?")
NONE = Query.same("SELECT key FROM storage WHERE agent = ?")


async def test_several_reads_come_back_in_their_order_with_their_rows(store_url: str) -> None:
    async with opened(store_url) as store:
        await store.commit(fence(), [put("A/x", "k1"), put("A/x", "k2"), put("A/x", "k3")])
        reads = [
            (VALUES, ("A/x", "k1")),
            (NONE, ("A/y",)),
            (COUNT, ("A/x",)),
            (VALUES, ("A/x", "")),
        ]
        found = await store.fetch_all(reads)
        assert found == [
            [("k3", "v"), ("k2", "v")],
            [],
            [(3,)],
            [("k3", "v"), ("k2", "v"), ("k1", "v")],
        ]
        assert all(type(row) is tuple for rows in found for row in rows)


async def test_a_null_and_any_text_survive_it(store_url: str) -> None:
    odd = Query.same("SELECT key, value, NULL FROM storage WHERE agent = ?")
    async with opened(store_url) as store:
        text = 'a"b\\c, (d) {e} \u2603 \x01'
        await store.commit(fence(), [put("A/x", text)])
        assert await store.fetch_all([(odd, ("A/x",))]) == [[(text, "v", None)]]
