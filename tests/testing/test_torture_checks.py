"""The checks of the torture, each random_plan to fail by one thing that is wrong, and by nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from outlast.chat.model.beginnings import CONTINUE
from outlast.chat.tools.outcome import UNKNOWN
from outlast.chat.types.recovery import TERMINAL_MESSAGE
from outlast.testing.torture import checks
from outlast.testing.torture.checks import Effects, Totals, Violation, audit
from outlast.testing.torture.journal import Journal, JournalReader
from outlast.testing.torture.plan import Plan, misplaced, random_plan
from outlast.testing.torture.report import Outcome, failure, table
from outlast.testing.torture.rows import Entry, Rows, StoredMessage
from outlast.testing.torture.server.process import KILL, KINDS, exceptions_in, kills
from outlast.testing.torture.users import requests
from outlast.testing.torture.users.watcher import Conversation, Turn

PLAN = Plan("a-0", (2, ("once", "idempotent"), 1, ("asks",), 1))
ONCE, IDEMPOTENT, ASKS = "a-0#1.0", "a-0#1.1", "a-0#3.0"


def call(tool: str, label: str, **fields: Any) -> dict[str, Any]:
    done = {"state": "output-available", "output": f"did {label}"}
    return {
        "type": f"tool-{tool}",
        "toolCallId": label,
        "input": {"label": label},
        **done,
        **fields,
    }


class World:
    """A conversation in which all is well: one turn, an approval, and what came after it."""

    def __init__(self) -> None:
        parts = [
            {"type": "text", "text": "a-0.1 a-0.2 "},
            call("once", ONCE),
            call("idempotent", IDEMPOTENT),
            {"type": "text", "text": "a-0.3 "},
            call("asks", ASKS),
            {"type": "text", "text": "a-0.4 "},
        ]
        asked = {"id": "u", "role": "user", "parts": [{"type": "text", "text": PLAN.prompt}]}
        self.answer: dict[str, Any] = {"id": "m", "role": "assistant", "parts": parts}
        chunks = [
            {"type": "start", "messageId": "m"},
            {"type": "text-start", "id": "t"},
            {"type": "text-delta", "id": "t", "delta": "a-0.1 "},
            {"type": "text-delta", "id": "t", "delta": "a-0.2 "},
            {"type": "text-end", "id": "t"},
        ]
        stream = {seq: json.dumps(chunk) for seq, chunk in enumerate(chunks)}
        self.rows = Rows(
            [
                Entry("r", "message", "ended", "completed", None, "m", 1, None),
                Entry("r2", "continue", "ended", "completed", None, "m", 1, None),
            ],
            [
                StoredMessage("u", None, "user", asked),
                StoredMessage("m", "u", "assistant", self.answer),
            ],
            {"r": stream},
        )
        self.turn = Turn(PLAN, "r", decisions={ASKS: True})
        for chunk in chunks:
            self.turn.hear(chunk)
        self.turn.close("done")
        self.said = Conversation("a", [self.turn], {"r": dict(stream)})
        self.effects = Effects()
        for tool, label in (("once", ONCE), ("idempotent", IDEMPOTENT), ("asks", ASKS)):
            self.did(tool, label)

    def did(self, tool: str, label: str, key: str = "key") -> None:
        self.effects.read([{"kind": "effect", "tool": tool, "label": label, "key": key}])

    def part(self, label: str) -> dict[str, Any]:
        return next(part for part in self.answer["parts"] if part.get("toolCallId") == label)

    def entry(self, place: int, **fields: Any) -> None:
        from dataclasses import replace

        self.rows.entries[place] = replace(self.rows.entries[place], **fields)

    def audit(self) -> list[Violation]:
        return audit(self.said, self.rows, self.effects, Totals())


def test_nothing_is_wrong_with_a_world_that_is_well() -> None:
    assert World().audit() == []


def lose_a_chunk(world: World) -> None:
    del world.rows.streams["r"][3]


def change_a_chunk(world: World) -> None:
    world.rows.streams["r"][2] = world.rows.streams["r"][2].replace("a-0.1", "a-0.9")


def show_a_chunk_differently(world: World) -> None:
    delta = '{"type":"text-delta","id":"t","delta":"x"}'
    world.said.heard({"id": "r", "seq": 3, "body": delta})


def lose_the_message(world: World) -> None:
    world.said.seen["r"] = {
        **world.said.seen["r"],
        3: json.dumps({"type": "text-delta", "id": "t", "delta": "a-0.2 and more"}),
    }
    world.rows.streams["r"] = dict(world.said.seen["r"])


def say_twice(world: World) -> None:
    world.answer["parts"][3]["text"] = "a-0.2 a-0.3 "


def leave_a_gap(world: World) -> None:
    world.answer["parts"][3]["text"] = "a-0.4 "
    world.answer["parts"][5]["text"] = "a-0.5 "


def say_something_else(world: World) -> None:
    world.answer["parts"][5]["text"] = "a-0.4 and so on"


def ask_twice(world: World) -> None:
    world.rows.messages.append(copy.copy(world.rows.messages[0]))


def answer_twice(world: World) -> None:
    world.rows.messages.append(StoredMessage("m2", "u", "assistant", {"id": "m2", "parts": []}))


def tell_twice(world: World) -> None:
    world.turn.text = "a-0.1 a-0.2 a-0.2 "


def repeat_once(world: World) -> None:
    world.did("once", ONCE)


def repeat_with_another_key(world: World) -> None:
    world.did("idempotent", IDEMPOTENT, key="another")


def do_nothing_and_say_so(world: World) -> None:
    del world.effects.done[ONCE]


def do_and_say_nothing(world: World) -> None:
    world.answer["parts"].remove(world.part(ONCE))


def do_what_was_refused(world: World) -> None:
    world.part(ASKS).update(state="output-denied")


def do_what_nobody_allowed(world: World) -> None:
    world.turn.decisions[ASKS] = False


def lose_the_input(world: World) -> None:
    del world.rows.entries[0]


def no_outcome(world: World) -> None:
    world.entry(0, outcome=None)


def another_outcome_than_told(world: World) -> None:
    world.entry(0, outcome="interrupted")


def given_up(world: World) -> None:
    world.entry(1, outcome="error", error=TERMINAL_MESSAGE)
    world.rows.given_up["r2"] = "boot_strikes"


def completed_too_early(world: World) -> None:
    world.answer["parts"].pop()


def still_running(world: World) -> None:
    world.entry(1, state="running")


def an_open_call(world: World) -> None:
    world.part(IDEMPOTENT).update(state="input-available")


def an_invalid_request(world: World) -> None:
    world.effects.read([{"kind": "request", "turn": "a-0", "wrong": ["it is empty"]}])


def still_waiting(world: World) -> None:
    world.turn.end = None


def still_recovering(world: World) -> None:
    world.said.spinning.append("a client shows that the agent is recovering")


def aborted_by_nobody(world: World) -> None:
    world.entry(0, outcome="aborted")


def failed_with_an_error(world: World) -> None:
    world.turn.end = "failed: it broke"
    world.entry(0, outcome="error", error="ValueError: it broke")


BROKEN: list[tuple[Callable[[World], None], str]] = [
    (lose_a_chunk, checks.MISSING),
    (change_a_chunk, checks.MISSING),
    (show_a_chunk_differently, checks.MISSING),
    (lose_the_message, checks.MISSING),
    (say_twice, checks.TWICE),
    (leave_a_gap, checks.TWICE),
    (say_something_else, checks.TWICE),
    (ask_twice, checks.TWICE),
    (answer_twice, checks.TWICE),
    (tell_twice, checks.TWICE),
    (repeat_once, checks.EFFECT),
    (repeat_with_another_key, checks.EFFECT),
    (do_nothing_and_say_so, checks.EFFECT),
    (do_and_say_nothing, checks.EFFECT),
    (do_what_was_refused, checks.EFFECT),
    (do_what_nobody_allowed, checks.EFFECT),
    (lose_the_input, checks.UNANSWERED),
    (no_outcome, checks.UNANSWERED),
    (another_outcome_than_told, checks.UNANSWERED),
    (given_up, checks.GIVEN_UP),
    (completed_too_early, checks.UNANSWERED),
    (still_running, checks.RUNNING),
    (an_open_call, checks.RUNNING),
    (an_invalid_request, checks.INVALID),
    (still_waiting, checks.SPINNING),
    (still_recovering, checks.SPINNING),
    (aborted_by_nobody, checks.FAILED),
    (failed_with_an_error, checks.FAILED),
]


@pytest.mark.parametrize(("breaks", "kind"), BROKEN, ids=[each.__name__ for each, _ in BROKEN])
def test_each_thing_that_is_wrong_is_found(breaks: Callable[[World], None], kind: str) -> None:
    world = World()
    breaks(world)
    assert {violation.kind for violation in world.audit()} == {kind}


def test_every_kind_of_violation_can_be_found() -> None:
    assert {kind for _, kind in BROKEN} == set(checks.KINDS)


def test_what_is_allowed_is_no_violation() -> None:
    """A call that is told as unknown, one that was repeated with its key, ends that the server adds for
    whoever comes late."""
    world = World()
    world.part(ONCE).update(state="output-error", errorText=UNKNOWN.format(why="it died"))
    world.did("idempotent", IDEMPOTENT)
    world.said.heard({"id": "r", "seq": 5, "body": '{"type":"text-end","id":"t"}', "replay": True})
    assert world.audit() == []
    totals = Totals()
    audit(world.said, world.rows, world.effects, totals)
    assert (totals.unknown, totals.repeated) == (1, 1)


# --- requests ------------------------------------------------------------------------------------


def conversation() -> list[ModelMessage]:
    plan = Plan("a-1", (2, ("read",), 1))
    return [
        ModelRequest([UserPromptPart(plan.prompt)]),
        ModelResponse([TextPart("a-1.1 a-1.2 "), ToolCallPart("read", {}, "c")]),
        ModelRequest([ToolReturnPart("read", "did it", "c")]),
        ModelResponse([TextPart("a-1.3 ")]),
        ModelRequest([UserPromptPart(CONTINUE)]),
    ]


def test_a_request_that_a_provider_takes_has_no_problem() -> None:
    assert requests.problems(conversation()) == []


@pytest.mark.parametrize(
    ("broken", "finding"),
    [
        (lambda m: m.clear(), "begin with a request"),
        (lambda m: m.pop(0), "begin with a request"),
        (lambda m: m.pop(), "something to answer"),
        (lambda m: m.pop(2), "two answers follow one another"),
        (lambda m: m.insert(2, ModelRequest([])), "is empty"),
        (lambda m: m.__setitem__(2, ModelRequest([UserPromptPart("?")])), "c has no result"),
        (lambda m: m[2].parts.append(ToolReturnPart("read", "", "c")), "c a second time"),
        (lambda m: m[2].parts.append(ToolReturnPart("read", "", "d")), "d without a call"),
        (lambda m: m[1].parts.append(ToolCallPart("read", {}, "c")), "belongs to two calls"),
        (lambda m: m[1].parts.append(ToolCallPart("read", {}, "d")), "the call d has no result"),
        (lambda m: m.__setitem__(3, ModelResponse([TextPart("a-1.2 ")])), "twice"),
        (lambda m: m.__setitem__(3, ModelResponse([TextPart("a-1.4 ")])), "after a gap"),
        (lambda m: m.append(m[0]), "stands in it 2 times"),
    ],
)
def test_each_thing_that_a_provider_refuses_is_found(
    broken: Callable[[list[Any]], None], finding: str
) -> None:
    messages: list[Any] = conversation()
    for message in messages:
        message.parts = list(message.parts)
    broken(messages)
    assert finding in "; ".join(requests.problems(messages))


# --- plans, kills, journals, reports -------------------------------------------------------------


def test_a_plan_that_is_carried_out_in_pieces_comes_to_the_same() -> None:
    import random

    chance = random.Random(1)
    for number in range(200):
        plan = random_plan(f"p-{number}", chance)
        assert Plan.of(plan.prompt) == plan
        said: list[str] = []
        answered: set[str] = set()
        while True:
            words, calls = plan.rest(len(said), answered)
            cut = chance.randint(0, len(words))
            said += words[:cut]
            if cut < len(words):
                continue  # it died in the middle
            if not calls:
                break
            answered.add(chance.choice(calls)[1])  # and here, with one of the calls done
        assert "".join(said) == plan.text()


def test_words_out_of_place_are_named() -> None:
    assert misplaced([1, 2, 3]) is None
    assert misplaced([1, 2, 2]) == "word 2 stands at place 3, twice"
    assert misplaced([1, 3]) == "word 3 stands at place 2, after a gap"


def test_a_seed_makes_the_same_kills_and_a_short_run_has_all_kinds() -> None:
    assert kills(3, 100) == kills(3, 100)
    assert kills(3, 100) != kills(4, 100)
    assert {kill.kind for kill in kills(3, 11)} == set(KINDS)
    assert [kill.kind for kill in kills(3, 1000)].count(KILL) > 700
    misfortunes = {"cut": 10, "frozen": 1}
    assert {kill.kind for kill in kills(3, 16, misfortunes)} >= {*KINDS, *misfortunes}


def test_exceptions_in_a_log_are_found_also_when_a_death_cut_one_off() -> None:
    frames = "Traceback (most recent call last):\n  File x\n    y\n"
    log = f"ERROR:    Exception\n{frames}websockets.exceptions.InvalidState: closing\n\nDuring handling\n"
    log += f"{frames}asyncio.exceptions.CancelledError: too long\n{frames}outlast: worker 1 was killed\n"
    log += f"{frames}ERROR:    Another\n{frames}KeyError: 'x'\n"
    assert exceptions_in(log) == ["websockets.exceptions.InvalidState: closing", "KeyError: 'x'"]


def test_a_line_that_a_death_cut_in_two_does_not_hide_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal, reader = Journal(path), JournalReader(path)
    journal.write("effect", label="a")
    with path.open("ab") as file:
        file.write(b'{"kind": "eff')
    assert [line["label"] for line in reader.new()] == ["a"]
    with path.open("ab") as file:
        file.write(b"\n")
    journal.write("effect", label="b", sync=True)
    assert [line["label"] for line in reader.new()] == ["b"]


def test_a_failure_names_the_seed_the_trace_and_the_command(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "clients.jsonl")
    journal.write("said", turn="a-0")
    journal.write("kill", how=KILL)
    journal.write("said", turn="b-0")
    outcome = Outcome(42, "sqlite", 2, "a limit", folder=tmp_path)
    outcome.violations.append(Violation(checks.TWICE, "a", "a-0", "word 2 stands twice"))
    text = failure(outcome, "script/torture --seed 42")
    assert "seed 42" in text
    assert "word 2 stands twice" in text
    assert "turn a-0" in text
    assert KILL in text
    assert "b-0" not in text
    assert text.endswith("script/torture --seed 42")
    assert f"| **{checks.TWICE}**" in table(outcome)
