"""Estimates the coordinator's clock on a node, with a bound on the error.

The time of day is wrong on many machines and jumps when it is corrected. The arrival time of an announcement is no
better: its delay on the link is unknown. So the node probes the coordinator's clock. Each probe has four timestamps,
which bound the error of its offset (docs/time.md). All times are in seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from thinwire_common.logs import tell
from thinwire_node.exchange.coordinator.messages import probe_times
from thinwire_node.exchange.port import ClockReading
from thinwire_node.runtime import Clocks
from thinwire_proto.limits import BACKOFF_FIRST_S, CLOCK_DRIFT_MAX, SUSPENDED_S
from thinwire_proto.wire import service_pb2 as pb

log = logging.getLogger("thinwire.node")

PROBES_KEPT = 8
FIRST_PROBES = 3
DOUBLED_MAX = 10
"""Times that the pause after an odd answer is doubled."""


@dataclass(frozen=True)
class Probe:
    """One probe. sent, back: times on the node's clock. received, answered: times on the coordinator's clock."""

    sent: float
    received: float
    answered: float
    back: float

    @property
    def offset(self) -> float:
        """The coordinator's clock minus the node's clock."""
        return ((self.received - self.sent) + (self.answered - self.back)) / 2

    @property
    def error(self) -> float:
        """Bound on the offset's error when the probe came back: half of the time on the network."""
        return ((self.back - self.sent) - (self.answered - self.received)) / 2

    def error_at(self, now: float) -> float:
        """Bound on the offset's error at a later time. It grows with the clocks' drift."""
        return self.error + CLOCK_DRIFT_MAX * max(0.0, now - self.back)


class CoordinatorClock:
    """The coordinator's clock, estimated from the newest probes of one term. Pure: the caller passes times in."""

    def __init__(self) -> None:
        self._probes: deque[Probe] = deque(maxlen=PROBES_KEPT)
        self._best: Probe | None = None
        self._term: int | None = None

    def __bool__(self) -> bool:
        return bool(self._probes)

    def forget(self) -> None:
        """Discard all probes, for example after the machine slept."""
        self._probes.clear()
        self._best = None

    def add(self, probe: Probe, term: int) -> str | None:
        """Add a probe. Returns a message if a clock jumped, else None."""
        if term != self._term:
            self.forget()
            self._term = term
        if probe.back < probe.sent or probe.answered < probe.received or probe.error < 0:
            self.forget()
            return "a clock ran backwards during a probe; discarded all probes"
        odd = None
        if self._probes:
            apart = abs(probe.offset - self.offset(probe.back))
            if apart > probe.error + self.error(probe.back):
                odd = f"this clock and the coordinator's have moved apart by {apart:.3f} s; probing again"
                self.forget()
        self._probes.append(probe)
        # all errors grow at the same rate, so the best probe remains the best until the next one arrives
        self._best = min(self._probes, key=lambda kept: kept.error_at(probe.back))
        return odd

    def offset(self, now: float) -> float:
        """The coordinator's clock minus the node's clock. Requires a known offset."""
        assert self._best is not None
        return self._best.offset

    def error(self, now: float) -> float:
        """Bound on the offset's error."""
        assert self._best is not None
        return self._best.error_at(now)


class ProbedClock:
    """The implementation of `thinwire_node.exchange.port.ExchangeClock`."""

    def __init__(self, probe: Callable[[], Awaitable[pb.ProbeReply]], clocks: Clocks, every_s: float) -> None:
        self._ask = probe
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
        reply = await self._ask()
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
