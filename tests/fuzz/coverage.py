"""Tells which inputs reach new code of thinwire.

The lines that an input reaches are recorded by `sys.monitoring` (Python 3.12), which switches each line off once it was
seen and so costs nothing later; before that by `sys.settrace`, which is slow, so that only some inputs are recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

PACKAGES = ("thinwire_proto", "thinwire_coordinator", "thinwire_node", "thinwire_common")
TRACED_EVERY = 17
"""Of how many inputs one is recorded, if recording is slow. A prime, so that each of several targets has its turn."""


class Coverage:
    """The lines seen so far. Use `ran` for each input, and `close` at the end."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()
        self._number = 0
        self._ours: dict[str, bool] = {}
        self._monitoring: Any = getattr(sys, "monitoring", None)
        if self._monitoring is not None:
            self._monitoring.use_tool_id(self._monitoring.COVERAGE_ID, "thinwire fuzz")
            event = self._monitoring.events.LINE
            self._monitoring.register_callback(self._monitoring.COVERAGE_ID, event, self._monitored)
            self._monitoring.set_events(self._monitoring.COVERAGE_ID, event)

    def ran(self, run: Callable[[], object]) -> bool:
        """Run an input and return whether it reached a new line; False if it was not recorded."""
        before = len(self.lines)
        self._number += 1
        if self._monitoring is not None or self._number % TRACED_EVERY:
            run()
        else:
            sys.settrace(self._called)
            try:
                run()
            finally:
                sys.settrace(None)
        return len(self.lines) > before

    def close(self) -> None:
        if self._monitoring is not None:
            self._monitoring.set_events(self._monitoring.COVERAGE_ID, 0)
            self._monitoring.free_tool_id(self._monitoring.COVERAGE_ID)

    def _monitored(self, code: CodeType, line: int) -> Any:
        if self._is_ours(code.co_filename):
            self.lines.add((code.co_filename, line))
        return self._monitoring.DISABLE

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._stepped if self._is_ours(frame.f_code.co_filename) else None

    def _stepped(self, frame: FrameType, event: str, argument: object) -> Any:
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._stepped

    def _is_ours(self, path: str) -> bool:
        found = self._ours.get(path)
        if found is None:
            found = self._ours[path] = any(f"/{package}/" in path for package in PACKAGES)
        return found
