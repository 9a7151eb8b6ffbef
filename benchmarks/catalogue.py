"""Every workload, and every job of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.meter import Metrics
    from benchmarks.place import Place


@dataclass(frozen=True)
class Job:
    """One workload on one system."""

    workload: str
    system: str
    """The family (`floor`, `ours`, `dbos`, ...), a hyphen, and the variant."""
    label: str
    against: str
    """What it is compared with: `floor-{against}` and `ours-{against}` of the same workload."""
    run: Callable[[Place, int], Metrics]
    size: int
    """How many operations (or seconds, or agents) a full run measures."""

    @property
    def name(self) -> str:
        return f"{self.workload} {self.system}"

    @property
    def needs_postgres(self) -> bool:
        return self.against == "postgres"

    @property
    def needs_restate(self) -> bool:
        return self.system.startswith("restate") and self.workload != "import"

    @property
    def needs_workerd(self) -> bool:
        return self.system.split("-")[0] == "think"


WORKLOADS = {
    "w1": "One durable checkpoint after another (about 200 bytes, in a running unit)",
    "w1b": "Commit latency of 100 writers beside a coroutine that keeps the loop busy",
    "w1c": "100 concurrent checkpointers",
    "w2": "Start and finish an empty durable unit, one after another",
    "w2c": "Start and finish an empty durable unit, 100 at a time",
    "w3": "One streamed answer of 500 deltas after another, from a model that never pauses",
    "w3c": "Streamed answers of 500 deltas, 50 at once",
    "w3t": "A turn: from the question to the durable end of an answer of one delta",
    "turncpu": "CPU of a warm turn of one delta, the host's and the database's, one after another",
    "turncpuc": "CPU of a warm turn of one delta, the host's and the database's, 20 at a time",
    "w3b": "What finished turns leave in the store, as a multiple of what was said",
    "w3s": "What a turn asks of the store, after 10 turns of a conversation and after 500",
    "w3f": "An answer of 200 words, one every 10 ms: commits, each with its fsync, and CPU, by `flush`",
    "w3x": "A tool call beside the tool's own work, and beside a call of a tool that does not exist",
    "w4": "SIGKILL in mid-answer: until a connected client is told more, and what was lost or came twice",
    "w4ten": "Ten SIGKILLs of one server, 8 s apart, each in mid-answer: until a client is told more",
    "w4cold": "A process that starts over an interrupted answer: until a client is told more",
    "seam": "Answers that are killed, and models that continue them in seven ways: characters twice and lost",
    "w5": "A fresh host over a store that knows 100,000 idle agents",
    "wire": "One streamed answer of 500 deltas after another, over a WebSocket",
    "wirec": "Streamed answers of 500 deltas over WebSockets, 50 at once",
    "wiret": "A turn over a WebSocket: from the question to the frame that ends an answer of one delta",
    "load": "1,000 sockets to 1,000 agents, 100 of which stream 50 deltas/s",
    "idle": "1,000 sockets to 1,000 agents that say nothing",
    "open": "A large conversation is opened: from the handshake to its transcript, and GET get-messages",
    "tabs": "A small turn on a conversation of 5 MB that 100 tabs show",
    "catchup": "A tab that comes late: from its handshake to the last of 4,000 stored deltas",
    "search": "A search in one conversation of 100,000 messages, beside the engine's own full-text search",
    "searchmany": "A search in one of 10,000 conversations, 100,000 messages in all",
    "import": "Import time in a fresh process, without the interpreter's own start",
}


def jobs() -> list[Job]:
    """All jobs, in the order of the tables."""
    from benchmarks import chat_floors, floors, imports, ours, ours_chat, ours_tools
    from benchmarks.peers import dbos, langgraph, pydantic_ai, restate, think
    from benchmarks.recovery import jobs as recovery
    from benchmarks.seam import jobs as seam
    from benchmarks.search import jobs as search
    from benchmarks.wire import jobs as wire

    sources = (
        floors,
        chat_floors,
        langgraph,
        dbos,
        restate,
        pydantic_ai,
        recovery,
        seam,
        search,
        wire,
        think,
        imports,
        ours,
        ours_chat,
        ours_tools,
    )
    found = [job for source in sources for job in source.JOBS]
    order = list(WORKLOADS)
    return sorted(found, key=lambda job: order.index(job.workload))
