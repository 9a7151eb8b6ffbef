"""The scripted models of the benchmark: a name, what it does, and how."""

from __future__ import annotations

from benchmarks.seam.misbehaviours import (
    Misbehaviour,
    greet_and_obey,
    obey,
    repeat_everything,
    repeat_the_tail,
    restart_differently,
    stop_at_once,
    switch_language,
)

MODELS: tuple[tuple[str, str, Misbehaviour], ...] = (
    ("obeys", "obeys", obey),
    ("tail", "repeats the tail", repeat_the_tail),
    ("everything", "repeats everything", repeat_everything),
    ("greets", "greets", greet_and_obey),
    ("restarts", "restarts in other words", restart_differently),
    ("stops", "stops at once", stop_at_once),
    ("language", "switches the language", switch_language),
)
