"""The session of one agent in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

from outlast.agent.battery import BatteryPart
from outlast.agent.commit import Commit
from outlast.agent.notices import Broadcast
from outlast.agent.part import Parts
from outlast.agent.receipts import Receipts
from outlast.agent.state.facts import Facts
from outlast.chat.context.overflow import Overflow
from outlast.chat.message.results import Message
from outlast.chat.tools.contribution import Contribution
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.settlement import Settlement
from outlast.chat.turn.turn import Turn, current_turn
from outlast.core import json
from outlast.core.errors import OutlastError
from outlast.core.hooks import call_hook, is_overridden
from outlast.core.text import described
from outlast.session.block import BlockSettings, ContextBlock
from outlast.session.blocks.blocks import Blocks
from outlast.session.blocks.loaded import loaded_keys
from outlast.session.blocks.stored import BlockRows
from outlast.session.blocks.tools import ContextTools
from outlast.session.blocks.unloaded import UnloadedView
from outlast.session.builder import Session
from outlast.session.compaction.compactor import Compactor
from outlast.session.compaction.overlays import Overlays
from outlast.session.events import CompactionFailed, SessionCompacted
from outlast.session.live import LiveSession, RecentHistory, TokenUsage
from outlast.session.prompt import FrozenPrompt
from outlast.session.search.backfill import Backfill
from outlast.session.search.search import SearchHit, SearchIndex
from outlast.session.search.words import analyser
from outlast.session.search.writes import has_due
from outlast.session.searching import search_response, search_tool
from outlast.session.tokens import calibrated, estimated_tokens
from outlast.session.window import windowed
from outlast.store.operations import Operation

logger = logging.getLogger("outlast.session")

SCALE = "session:scale"  # a fact: reported tokens for each estimated one
NOT_SHORTENED = "The conversation could not be summarised."
INDEXED = "session:indexed"  # a fact: whether every change of a message was made in the index, too
ADDED = "session:added"  # a fact: the blocks that `add_context` added

Reason = Literal["after", "manual", "reactive", "proactive"]


class SessionPart(BatteryPart, ChatPart):
    """Shows the model its blocks and its conversation. An agent that configures no session pays nothing."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._facts = parts[Facts]
        self._transcript = parts[Transcript]
        self.settings = Session()
        self.is_used = False
        self._is_index_due = False  # something is stored that the index does not have
        self._indexing: asyncio.Task[None] | None = None
        self._compacting: asyncio.Task[None] | None = None

    # --- made on first use, once the settings are known ------------------------------------------

    @cached_property
    def live(self) -> LiveSession:
        return LiveSession(self)

    @cached_property
    def blocks(self) -> Blocks:
        activation = self.activation
        rows = BlockRows(self.address, activation.store, self.commits, activation.clock)
        own = {block.label for block in self.settings.blocks}  # the code takes precedence
        added = [BlockSettings(**each) for each in self._added() if each["label"] not in own]
        blocks = [*self.settings.blocks, *added]
        return Blocks(blocks, rows, estimate=estimated_tokens, where=self.address)

    @cached_property
    def prompt(self) -> FrozenPrompt:
        return FrozenPrompt(self.parts, self.settings, self.blocks)

    @cached_property
    def overlays(self) -> Overlays:
        return Overlays(self.parts)

    @cached_property
    def compactor(self) -> Compactor:
        return Compactor(self.parts, self.settings, self.overlays, self._refresh)

    @cached_property
    def _unloaded(self) -> UnloadedView:
        return UnloadedView()

    @cached_property
    def _search(self) -> SearchIndex:
        store = self.activation.store
        if not self.settings.is_searchable:
            return SearchIndex(store, self.address)
        return SearchIndex(store, self.address, self.settings.search_language)

    # --- life ------------------------------------------------------------------------------------

    async def load(self) -> None:
        agent = self.parts.agent
        is_configured = is_overridden(agent.configure_session)
        self.is_used = is_configured or bool(self._added())
        session = (
            await call_hook(agent.configure_session, Session()) if is_configured else Session()
        )
        if not isinstance(session, Session):
            raise TypeError(f"configure_session must return a Session, got {session!r}")
        session.check()
        if session.compaction is None and agent.context_overflow.is_on:
            logger.warning(
                "%s: context_overflow is set, but there is no compaction function: a conversation that is"
                " too long will end with an error. Set one in configure_session: session.on_compaction(…)",
                self.address,
            )
        if not self.is_used:
            return
        self.settings = session
        await self.overlays.load()
        _ = self.blocks  # raises if a block is wrong

    async def start(self) -> None:
        if self.settings.is_searchable:
            self._index_soon()

    def _index_soon(self) -> None:
        self._is_index_due = True
        if self._indexing is None and self.activation.ended is None:
            self._indexing = self.activation.spawn(self._index(), "search index")

    async def _index(self) -> None:
        """Index what was stored before the index was switched on, and what was too long at the time."""
        language = self.settings.search_language
        store = self.activation.store
        try:
            while self._is_index_due:
                self._is_index_due = False
                await Backfill(store, self._index_with, self.address, analyser(language)).run()
        except OutlastError as error:
            if self.activation.ended is None:
                logger.warning("%s: the search index is not complete: %s", self.address, error)
        finally:
            self._indexing = None

    async def _index_with(self, operations: list[Operation]) -> None:
        commit = self.commits.new()
        commit.write(*operations)
        self._note_index(commit, is_kept=True)
        await commit.stored()

    def _note_index(self, commit: Commit, *, is_kept: bool) -> None:
        """Remember whether the index follows the messages; a life without search leaves it behind."""
        if self._has_index != is_kept:
            self._facts.put(commit, INDEXED, json.encode(is_kept))

    @property
    def _has_index(self) -> bool:
        return self._facts.text(INDEXED) == "true"

    def leave(self, reason: Exception) -> None:
        if self._compacting is not None:
            self._compacting.cancel()

    # --- a turn ----------------------------------------------------------------------------------

    async def contribute(self, turn: Turn) -> Contribution | None:
        if not self.is_used:
            return None
        await self.overlays.find(self._transcript.path)
        prompt, is_searchable = await self.prompt.text(), self.settings.is_searchable
        return Contribution(
            source="session",
            system=prompt or None,
            reminders=await self.prompt.reminders(),
            tools=[*self._context_tools(), *([search_tool(self)] if is_searchable else [])],
        )

    def shown(self, path: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        if not self.is_used:
            return path
        head, path = self.overlays.over(path)
        if self.blocks.labels(lambda can: can.can_load):
            path = self._unloaded.over(path)
        return [*head, *windowed(path, self.settings)]

    async def compact(self, overflow: Overflow) -> bool:
        return await self._compact(overflow.path, overflow.reason)

    def settled(self, commit: Commit, settlement: Settlement) -> None:
        if self.is_used and settlement.message is not None:
            self._calibrate(commit, settlement)
            if self.settings.threshold is not None:
                commit.then(self._after_turn)

    def _context_tools(self) -> list[Any]:
        return ContextTools(self.blocks, self.parts[Receipts], self._unload).offered()

    def messages_stored(self, commit: Commit, operations: Sequence[Operation]) -> None:
        if self.settings.is_searchable:
            rows = self._search.writes.following(operations)
            commit.write(*rows)
            self._note_index(commit, is_kept=True)
            if has_due(rows):
                commit.then(self._index_soon)
        elif self._has_index:
            commit.write(self._search.writes.abandoned())
            self._note_index(commit, is_kept=False)

    def cleared(self, commit: Commit) -> None:
        if self.is_used:
            self.overlays.clear(commit)
            self.prompt.forget(commit)

    # --- tokens ----------------------------------------------------------------------------------

    def history(self) -> Sequence[dict[str, Any]]:
        """Return the conversation as the model sees it."""
        return self.shown(self._transcript.path)

    def recent(self, max_bytes: int, min_recent: int) -> RecentHistory:
        shown = list(self.history())
        sizes = [len(json.encode(each, "message", json.MAX_DEPTH + 10).encode()) for each in shown]
        first, left = len(shown), max_bytes
        while first > 0 and (sizes[first - 1] <= left or len(shown) - first < min_recent):
            first -= 1
            left -= sizes[first]
        return RecentHistory(list(map(Message, shown[first:])), first > 0, sum(sizes))

    def token_usage(self) -> TokenUsage:
        proactive = self.parts.agent.context_overflow.proactive
        window = None if proactive is None else proactive.max_input_tokens
        return TokenUsage(self._tokens(self.history()), self.settings.threshold, window)

    def _tokens(self, shown: Sequence[dict[str, Any]]) -> int:
        return round(self._estimate(shown) * self._scale)

    def _estimate(self, shown: Sequence[dict[str, Any]]) -> int:
        return estimated_tokens(self.prompt.current) + sum(self.compactor.count(shown))

    @property
    def _scale(self) -> float:
        if self.settings.token_counter is not None:
            return 1.0
        stored = self._facts.get(SCALE, None, 1.0)
        return stored if isinstance(stored, float | int) and stored > 0 else 1.0

    def _calibrate(self, commit: Commit, settlement: Settlement) -> None:
        """Compare the estimate with the usage that the model reported for the last request."""
        turn, message = settlement.turn, settlement.message
        if turn is None or turn.last_usage is None or message is None:
            return
        if self.settings.token_counter is not None or turn.is_continuation:
            return
        usage = turn.last_usage
        reported = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        path = [each for each in self._transcript.path if each["id"] != message["id"]]
        scale = calibrated(self._scale, self._estimate(self.shown([*path, message])), reported)
        if abs(scale - self._scale) > 0.05 * self._scale:
            self._facts.put(commit, SCALE, json.encode(scale))

    # --- compaction ------------------------------------------------------------------------------

    def _after_turn(self) -> None:
        threshold = self.settings.threshold
        if self._compacting is not None or threshold is None or self.activation.ended is not None:
            return
        if self._tokens(self.history()) > threshold:
            self._compacting = self.activation.spawn(self._compact_after(), "compaction")

    async def _compact_after(self) -> None:
        try:
            await self._compact(list(self._transcript.path), "after")
        finally:
            self._compacting = None

    async def compact_now(self, reason: Reason) -> bool:
        if self.settings.compaction is None:
            raise RuntimeError(
                "compact() needs a function that summarises: add .on_compaction(summarise(model)) in"
                " configure_session"
            )
        return await self._compact(list(self._transcript.path), reason)

    async def _compact(self, path: Sequence[dict[str, Any]], reason: Reason) -> bool:
        await self.overlays.find(path)
        before = self._tokens(self.shown(path))
        self._tell("compacting", before)
        overlay = None
        try:
            overlay = await self.compactor.compact(path)
        except Exception as error:
            await self._failed(error)
        finally:  # also if it is cancelled: every indicator goes off
            after = self._tokens(self.shown(path))
            self._tell("idle", after, {"tokensBefore": before} if overlay is not None else None)
        if overlay is not None:
            self.activation.events.emit(
                SessionCompacted,
                self.address,
                reason=reason,
                last=overlay.last,
                tokens_before=before,
                tokens_after=after,
            )
        return overlay is not None

    async def _refresh(self, commit: Commit) -> None:
        await self.prompt.refresh_with(commit)

    async def _failed(self, error: Exception) -> None:
        """Report a compaction that failed; the conversation stays as it was."""
        logger.error("%s: cannot compact the conversation", self.address, exc_info=error)
        self.activation.events.emit(CompactionFailed, self.address, error=described(error))
        frame = {"type": "cf_agent_session_error", "error": NOT_SHORTENED}
        self.activation.tell(Broadcast(json.encode(frame)))
        hook = self.settings.compaction_error
        if hook is not None:
            try:
                await call_hook(hook, error)
            except Exception:
                logger.exception("%s: on_compaction_error raised", self.address)

    # --- clients ---------------------------------------------------------------------------------

    def greeting(self) -> Iterator[str]:
        if self.is_used and self.settings.threshold is not None:
            phase = "idle" if self._compacting is None else "compacting"
            yield self._frame(phase, self._tokens(self.history()))

    def _frame(self, phase: str, tokens: int, compacted: dict[str, Any] | None = None) -> str:
        frame: dict[str, Any] = {
            "type": "cf_agent_session",
            "phase": phase,
            "tokenEstimate": tokens,
            "tokenThreshold": self.settings.threshold,
        }
        return json.encode(frame if compacted is None else {**frame, "compacted": compacted})

    def _tell(self, phase: str, tokens: int, compacted: dict[str, Any] | None = None) -> None:
        self.activation.tell(Broadcast(self._frame(phase, tokens, compacted)))

    async def request(self, request: Any, rest: str) -> Any:
        if rest == "search":
            return await search_response(self, request)
        return self._state_response(request) if not rest else None

    def _state_response(self, request: Any) -> Any:
        """Answer `GET …/session`: how long the conversation is, and where a summary stands for messages."""
        from starlette.responses import JSONResponse

        if request.method not in ("GET", "HEAD"):
            return None
        overlay = self.overlays.of(self._transcript.path) if self.is_used else None
        shown = None if overlay is None else {"last": overlay.last, "text": overlay.summary}
        usage = self.token_usage()
        return JSONResponse(
            {"tokens": usage.estimate, "threshold": usage.threshold, "summary": shown}
        )

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        return await self._search.search(query, limit)

    # --- context blocks --------------------------------------------------------------------------

    async def add_context(self, label: str, **options: Any) -> ContextBlock:
        """Add a block, or replace one that was added; one that is stored with the agent is remembered."""
        settings = BlockSettings(label=label, **options)
        own = {block.label for block in self.settings.blocks}
        if label not in own and any(each["label"] == label for each in self._added()):
            await self.remove_context(label)
        block = await self.blocks.add(settings)
        self.is_used = True
        if settings.provider is None:
            await self._facts.set(ADDED, json.encode([*self._added(), _record(settings)]))
        return block

    async def remove_context(self, label: str) -> bool:
        """Remove a block. Its content stays with its provider."""
        async with self.commits.block():
            found = self.blocks.remove(label)
            left = [each for each in self._added() if each["label"] != label]
            if len(left) < len(self._added()):
                await self._facts.set(ADDED, json.encode(left))
        return found

    async def _unload(self, label: str, key: str) -> bool:
        """Return whether an entry is loaded. It is not shown any more once `unload_context` has returned."""
        turn = current_turn.get()
        running = [] if turn is None else [turn.builder.message()]
        return (label, key) in loaded_keys([*self._transcript.path, *running])

    def _added(self) -> list[dict[str, Any]]:
        return list(self._facts.get(ADDED, None, None) or ())


def _record(settings: BlockSettings) -> dict[str, Any]:
    names = ("label", "description", "max_tokens", "when_changed")
    return {name: getattr(settings, name) for name in names}
