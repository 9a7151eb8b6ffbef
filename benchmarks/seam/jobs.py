"""The jobs of the seam, but those of Think, which are in `peers/think`."""

from __future__ import annotations

from benchmarks.catalogue import Job
from benchmarks.seam.killed import real, scripted
from benchmarks.seam.misbehaviours import SPLICEABLE, WRONG
from benchmarks.seam.models import MODELS
from benchmarks.seam.splices import splices

ANSWERS = 20  # of each model, killed
CUTS = 10  # of each of a real model's answers
TEXTS = 10_000

WAYS = (
    ("instruct", "instruct", "asked to continue"),
    ("nearby", None, "handed its words, spliced"),  # what a server in the network is taken for
)

JOBS = [
    *(
        Job(
            "seam",
            f"ours-{variant}-{name}",
            f"outlast, {how}: {what}",
            "",
            scripted("ours", way, behave),
            ANSWERS,
        )
        for variant, way, how in WAYS
        for name, what, behave in MODELS
    ),
    Job(
        "seam",
        "ours-prefill-obeys",
        "outlast, handed its words: continues",
        "",
        scripted("ours", "prefill", MODELS[0][2]),
        ANSWERS,
    ),
    Job(
        "seam", "ours-real-prefill", "outlast, SmolLM2, handed its words", "", real("prefill"), CUTS
    ),
    Job(
        "seam",
        "ours-real-instruct",
        "outlast, SmolLM2, asked to continue",
        "",
        real("instruct"),
        CUTS,
    ),
    *(
        Job(
            "seam",
            f"{system}-any",
            f"{label}: any of these models",
            "",
            scripted(system, None, *(behave for _, _, behave in MODELS)),
            ANSWERS // 4,
        )
        for system, label in (("langgraph", "LangGraph SQLite"), ("dbos", "DBOS SQLite, in WAL"))
    ),
    *(
        Job("seam", f"splicer-{name}", f"splicer alone: {what}", "", splices(behaving, pace), TEXTS)
        for name, what, behaving, pace in (
            ("once", "repeats, greets, stops; all at once", SPLICEABLE, 0),
            ("fast", "the same, 50 tokens/s", SPLICEABLE, 50),
            ("slow", "the same, 15 tokens/s", SPLICEABLE, 15),
            ("wrong", "another answer or language, 50 tokens/s", WRONG, 50),
        )
    ),
]
