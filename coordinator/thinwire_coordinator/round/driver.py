"""Drives the round machine by the event loop's clock: whatever happens goes in here with the time, and whatever is
to be done comes out to one handler, now or when a timer says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from thinwire_coordinator.round.contributions import Contribution, Round
from thinwire_coordinator.round.machine import Action, Phase, RoundMachine

TICK_S = 0.001
"""The timer fires so much behind a deadline: what arrives at the very deadline is still counted."""


class RoundDriver:
    """`now`: seconds on a monotonic clock; the event loop's own may be one that moves only between two turns of the
    loop, and nodes ask for it to the microsecond."""

    def __init__(self, machine: RoundMachine, now: Callable[[], float]) -> None:
        self._machine = machine
        self.now = now
        self._handle: Callable[[Action], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, handle: Callable[[Action], None]) -> None:
        """From now on `handle` gets every action, in order."""
        self._handle = handle

    def now_us(self) -> int:
        return round(self.now() * 1e6)

    # how it is

    @property
    def round(self) -> Round | None:
        """The round that is open, or whose update is being sealed."""
        return self._machine.round

    @property
    def sealing(self) -> bool:
        return self._machine.phase is Phase.SEALING

    @property
    def complete(self) -> bool:
        """Whether all updates of the run are sealed."""
        return self._machine.phase is Phase.COMPLETE

    @property
    def step(self) -> int:
        """Updates that are sealed."""
        return self._machine.step

    @property
    def next_round(self) -> int:
        """The number that the next round will have."""
        return self._machine.next_round

    @property
    def missing_nodes(self) -> int:
        """How many more active nodes a round needs to open."""
        return self._machine.missing_nodes

    @property
    def awaited(self) -> int:
        """How many active nodes the open round still waits for."""
        return self._machine.awaited

    # what happens

    def attend(self, node: str) -> None:
        self._do(self._machine.attend(node, self.now()))

    def depart(self, node: str) -> None:
        self._do(self._machine.depart(node, self.now()))

    def heard(self, node: str) -> None:
        self._machine.heard(node)

    def excuse(self, node: str) -> None:
        self._do(self._machine.excuse(node, self.now()))

    def sealed(self) -> None:
        self._do(self._machine.sealed(self.now()))

    def deliver(self, contribution: Contribution, to: Round, accepted: Callable[[], None]) -> bool:
        """Whether the contribution is accepted; if so, `accepted` is called before anything that follows from it is
        done."""
        in_time, actions = self._machine.deliver(contribution, to, self.now())
        if in_time:
            accepted()
        self._do(actions)
        return in_time

    def stop(self) -> None:
        """No timer fires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._do(self._machine.tick(self.now()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            assert self._handle is not None
            self._handle(action)
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._machine.deadline
        self._timer = None
        if deadline is not None:
            wait_s = max(0.0, deadline - self.now()) + TICK_S
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)
