"""Connects the round machine to the event loop: adds the time to each event, and runs the timer.

One handler receives every action of the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from thinwire_coordinator.star.round.contributions import Contribution, Round
from thinwire_coordinator.star.round.machine import Action, RoundMachine
from thinwire_proto.contract import RoundSpec

TICK_S = 0.001
"""The timer fires this many seconds after a deadline, so that a contribution exactly at the deadline still counts."""


class RoundDriver:
    """Feeds a round machine with events and passes its actions on. Others only read `machine`.

    now: seconds on a monotonic clock. The event loop's own clock may not do, because it may advance only between two
    iterations of the loop, and nodes measure in microseconds.
    """

    def __init__(self, machine: RoundMachine, now: Callable[[], float]) -> None:
        self.machine = machine
        self.now = now
        self._handle: Callable[[Action], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.going_back: int | None = None
        """The step that the run is going back to; no round opens meanwhile."""

    def start(self, handle: Callable[[Action], None]) -> None:
        """Pass every action to `handle` from now on, in order."""
        self._handle = handle

    def attend(self, node: str, *, has_weight: bool = True) -> None:
        self._do(self.machine.attend(node, self.now(), has_weight=has_weight))

    def depart(self, node: str) -> None:
        self._do(self.machine.depart(node, self.now()))

    def heard(self, node: str) -> None:
        self.machine.heard(node)

    def disregard(self, node: str) -> None:
        self.machine.disregard(node)

    def excuse(self, node: str, *, has_nothing: bool = False) -> None:
        self._do(self.machine.excuse(node, self.now(), has_nothing=has_nothing))

    def sealed(self) -> None:
        self._do(self.machine.sealed(self.now()))

    def not_sealed(self, why: str) -> None:
        self._do(self.machine.not_sealed(why, self.now()))

    def deliver(self, contribution: Contribution, to: Round, accepted: Callable[[], None]) -> bool:
        """Offer a checked contribution to a round. Return whether the round accepted it.

        If so, `accepted` is called before the actions that result from the acceptance.
        """
        in_time, actions = self.machine.deliver(contribution, to, self.now())
        if in_time:
            accepted()
        self._do(actions)
        return in_time

    def hold(self, *, held: bool) -> None:
        self._do(self.machine.hold(self.now(), held=held))

    def amend(self, spec: RoundSpec, steps: int) -> None:
        self._do(self.machine.amend(spec, steps, self.now()))

    def stop(self) -> None:
        """Open and end no round any more. One that is being sealed may still be sealed."""
        self.machine.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._do(self.machine.tick(self.now()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            assert self._handle is not None
            self._handle(action)
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.machine.deadline
        self._timer = None
        if deadline is not None:
            wait_s = max(0.0, deadline - self.now()) + TICK_S
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)
