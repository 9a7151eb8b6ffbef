"""Hooks as type checkers see them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).parent.parent.parent / ".mypy_cache" / "test_hook_types"
OVERRIDES = """
from collections.abc import Sequence
from typing import Any
from outlast import *
from outlast import Session

class {name}(Think):
    {kind} configure_session(self, session: Session) -> Session:
        return session
    {kind} hydrate_messages(self, context: HydrationContext) -> Sequence[Any] | None:
        return None
    {kind} before_turn(self, context: TurnContext) -> TurnConfig | None:
        return TurnConfig(max_steps=3)
    {kind} before_step(self, context: PrepareStepContext) -> StepConfig | None:
        return None
    {kind} on_chunk(self, context: ChunkContext) -> None: ...
    {kind} before_tool_call(self, context: ToolCallContext) -> ToolCallDecision | None:
        return {{"action": "block", "reason": "no"}} if context.step_number else Allow()
    {kind} after_tool_call(self, context: ToolCallResultContext) -> None: ...
    {kind} on_step_finish(self, context: StepContext) -> None: ...
    {kind} on_chat_response(self, result: ChatResponseResult) -> None: ...
    {kind} on_chat_recovery(self, context: ChatRecoveryContext) -> ChatRecoveryOptions | None:
        return None
    {kind} on_recovery_boot(self, event: RecoveryBootEvent) -> RecoveryBootResult | None:
        return None
    {kind} on_chat_error(self, error: Exception, context: ChatErrorContext) -> str:
        return "Sorry."
    def classify_chat_error(
        self, error: Exception, context: ChatErrorContext
    ) -> ChatErrorClassification | None:
        return None
    def repair_interrupted_tool_part(self, part: dict[str, Any]) -> dict[str, Any] | None:
        return None
"""


def test_mypy_accepts_plain_and_async_overrides_of_every_hook(tmp_path: Path) -> None:
    both = [
        OVERRIDES.format(name="Plain", kind="def"),
        OVERRIDES.format(name="Later", kind="async def"),
        "class Wrong(Think):\n    def before_turn(self, context: TurnContext) -> int:\n        return 5\n",
    ]
    (tmp_path / "use.py").write_text("".join(both))
    (tmp_path / "mypy.ini").write_text("[mypy-pydantic_ai.*]\nfollow_imports = skip\n[mypy]\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(CACHE)]
    found = subprocess.run(
        [*command, "use.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    complaints = [line for line in found.stdout.splitlines() if line.startswith("use.py")]
    assert len(complaints) == 1, found.stdout
    assert 'Return type "int" of "before_turn" incompatible' in complaints[0]
