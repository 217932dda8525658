"""Drives the round machine by the event loop's clock: whatever happens goes in here with the time, and whatever is
to be done comes out to one handler, now or when a timer says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from thinwire_coordinator.round.machine import Action, RoundMachine

TICK_S = 0.001
"""The timer fires so much behind a deadline: what arrives at the very deadline is still counted."""


class RoundDriver:
    """`handle` gets every action, in order. `now`: seconds on a monotonic clock; the event loop's own may be one that
    moves only between two turns of the loop, and nodes ask for it to the microsecond."""

    def __init__(self, machine: RoundMachine, handle: Callable[[Action], None], now: Callable[[], float]) -> None:
        self.machine = machine
        self.now = now
        self._handle = handle
        self._timer: asyncio.TimerHandle | None = None

    def now_us(self) -> int:
        return round(self.now() * 1e6)

    def attend(self, node: str) -> None:
        self._do(self.machine.attend(node, self.now()))

    def depart(self, node: str) -> None:
        self._do(self.machine.depart(node, self.now()))

    def excuse(self, node: str) -> None:
        self._do(self.machine.excuse(node, self.now()))

    def sealed(self) -> None:
        self._do(self.machine.sealed(self.now()))

    def deliver(self, node: str, round_number: int, arrived: Callable[[], None]) -> bool:
        """Whether the contribution is in; if so, `arrived` is called before anything that follows from it is done."""
        in_time, actions = self.machine.deliver(node, round_number, self.now())
        if in_time:
            arrived()
        self._do(actions)
        return in_time

    def stop(self) -> None:
        """No timer fires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._do(self.machine.tick(self.now()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            self._handle(action)
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.machine.deadline
        self._timer = None
        if deadline is not None:
            wait_s = max(0.0, deadline - self.now()) + TICK_S
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)
