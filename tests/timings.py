"""How long tests take, as `script/test --quick` finds it."""

from __future__ import annotations


def merged(known: dict[str, float], took: dict[str, float]) -> dict[str, float]:
    """What is known after a run: what it has measured, and of other tests what was known before.

    A test that has got parameters, or has lost them, is not the one that was known.
    """
    has_parameters = {name.partition("[")[0]: "[" in name for name in took}
    kept = {
        name: seconds
        for name, seconds in known.items()
        if has_parameters.get(name.partition("[")[0], "[" in name) == ("[" in name)
    }
    return kept | {name: round(seconds, 2) for name, seconds in took.items()}
