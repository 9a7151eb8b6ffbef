"""What every system writes: about 200 bytes of JSON, different each time.

SQLite does not write a page that did not change, so a constant payload would measure nothing.
"""

from __future__ import annotations

import json


def payload(i: int) -> dict[str, object]:
    """The i-th payload."""
    return {"step": i, "note": f"{i:08d}" * 21}


def payload_json(i: int) -> str:
    """The i-th payload, encoded."""
    return json.dumps(payload(i))
