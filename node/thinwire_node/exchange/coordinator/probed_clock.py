"""Probes the coordinator's clock over the link. `clock` explains a probe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from thinwire_common.logs import tell
from thinwire_node.exchange.coordinator.clock import CoordinatorClock, Probe
from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.coordinator.messages import probe_times
from thinwire_node.exchange.port import ClockReading
from thinwire_node.runtime import Clocks
from thinwire_proto.limits import BACKOFF_FIRST_S, SUSPENDED_S

log = logging.getLogger("thinwire.node")

FIRST_PROBES = 3
DOUBLED_MAX = 10
"""Times that the pause after an odd answer is doubled."""


class ProbedClock:
    """The star's implementation of `thinwire_node.exchange.port.ExchangeClock`."""

    def __init__(self, link: Link, clocks: Clocks, every_s: float) -> None:
        self._link = link
        self._clocks = clocks
        self._every_s = every_s
        self._clock = CoordinatorClock()
        self._asleep_s = clocks.asleep_s()
        self._probe_now = asyncio.Event()
        self._odd_in_a_row = 0

    async def begin(self, probed: Callable[[bool], None]) -> None:
        for _ in range(FIRST_PROBES):
            await self._probe(probed)

    async def keep(self, probed: Callable[[bool], None]) -> None:
        while True:
            self._probe_now.clear()
            timer = asyncio.get_running_loop().call_later(self._every_s, self._probe_now.set)
            try:
                await self._probe_now.wait()
            finally:
                timer.cancel()
            await self._probe(probed)
            if self._odd_in_a_row:  # else a coordinator with odd answers would be asked without a pause
                await asyncio.sleep(min(self._every_s, BACKOFF_FIRST_S * 2 ** min(self._odd_in_a_row, DOUBLED_MAX)))

    def check(self) -> None:
        if self._slept() or not self._clock:
            self._probe_now.set()

    def reading(self) -> ClockReading | None:
        if not self._clock:
            return None
        now = self._clocks.now()
        return ClockReading(self._clock.offset(now), self._clock.error(now))

    async def _probe(self, probed: Callable[[bool], None]) -> None:
        self._slept()
        sent = self._clocks.now()
        reply = await self._link.probe()
        if self._slept():
            return
        term, received, answered = probe_times(reply)
        odd = self._clock.add(Probe(sent, received, answered, self._clocks.now()), term)
        self._odd_in_a_row = self._odd_in_a_row + 1 if odd else 0
        if odd:
            tell(log, logging.WARNING, "node.clock_jump", odd, slept_s=0.0, reason=odd)
        probed(odd is not None)

    def _slept(self) -> bool:
        """Whether the machine has slept since the last call. If so, discards the offset."""
        before, self._asleep_s = self._asleep_s, self._clocks.asleep_s()
        if abs(self._asleep_s - before) <= SUSPENDED_S:
            return False
        slept_s = self._asleep_s - before
        text = f"this machine slept for {slept_s:.0f} s; probing the coordinator's clock again"
        tell(log, logging.INFO, "node.clock_jump", text, slept_s=slept_s, reason=text)
        self._clock.forget()
        self._probe_now.set()
        return True
