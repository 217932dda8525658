"""Keeps a node within its limits: follows the file of the limits and the owner's orders, and says when it rests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from thinwire_common.local_time import follow_zone
from thinwire_common.within import set_or_after
from thinwire_node.limits import limits
from thinwire_node.limits.limits import LIMITS_FILE, Limits, LimitsFile, version_of
from thinwire_node.limits.machine_load import MachineLoad, set_priority
from thinwire_node.limits.month import MONTH_FILE, MonthlyBudget
from thinwire_node.limits.resting import ORDERS_FILE, OrdersFile, Rest, rest
from thinwire_proto.errors import ConfigError

log = logging.getLogger("thinwire.node")

LOOK_EVERY_S = 0.1
"""The interval at which the files are looked at, and the hours: two calls of the system."""


@dataclass(frozen=True)
class LimitsSource:
    """The origin of a node's limits. path: of the file; None: `limits.toml` in the state directory. given: texts by
    field that the command line sets; they go into the file."""

    path: Path | None = None
    given: Mapping[str, str] = field(default_factory=dict)

    def file(self, state_dir: Path) -> LimitsFile:
        return LimitsFile(self.path or state_dir / LIMITS_FILE)

    def read(self, state_dir: Path) -> Limits:
        """The limits of file and command line. Raises ConfigError."""
        return limits.check(limits.changed(self.file(state_dir).read(), dict(self.given)))


class LimitsKeeper:
    """Keeps the limits of one node, whose state directory this process holds. Raises ConfigError.

    time_of_day: seconds since the epoch. on_limits: called with new limits. on_stop: called with an order to stop."""

    def __init__(
        self,
        source: LimitsSource,
        state_dir: Path,
        time_of_day: Callable[[], float],
        on_limits: Callable[[Limits], None],
        on_stop: Callable[[str], None],
    ) -> None:
        self._file = source.file(state_dir)
        self._orders_file = OrdersFile(state_dir / ORDERS_FILE)
        self._time_of_day = time_of_day
        self._on_limits = on_limits
        self._on_stop = on_stop
        self._load = MachineLoad()
        self._file.change(source.given)
        self.limits = limits.check(self._file.read())
        self._orders_file.forget_stop()
        self._orders = self._orders_file.read()
        self.budget = MonthlyBudget(
            state_dir / MONTH_FILE, self.limits.monthly_data, self.limits.monthly_reset_day, time_of_day()
        )
        self._seen = self._versions()
        self.rests = asyncio.Event()
        """Set while the node rests."""
        self.resting: Rest | None = None
        self._minute = -1
        self._decide()

    async def run(self) -> None:
        wake = asyncio.Event()
        while True:
            self.look()
            await set_or_after(wake, LOOK_EVERY_S)
            wake.clear()

    def _versions(self) -> tuple[object, ...]:
        return self._file.version(), version_of(self._orders_file.path)

    def look(self) -> None:
        """Take what has changed, and decide anew."""
        if (versions := self._versions()) != self._seen:
            self._seen = versions
            for take in (self._take_orders, self._take_limits):  # a mistake in the limits must not hold up a pause
                try:
                    take()
                except ConfigError as error:
                    log.warning("%s", f"{error}; the node goes on as before")
        self._decide()

    def _take_orders(self) -> None:
        before, self._orders = self._orders, self._orders_file.read()
        if self._orders.stop and self._orders.stop != before.stop:
            self._on_stop(self._orders.stop)

    def _take_limits(self) -> None:
        before, self.limits = self.limits, limits.check(self._file.read())
        if (found := self.limits) != before:
            if found.priority != before.priority:
                set_priority(found.priority)
            self._on_limits(found)
            log.info("the limits have changed")

    def _decide(self) -> None:
        now = self._time_of_day()
        if (minute := int(now // 60)) != self._minute:  # a laptop travels
            self._minute = minute
            follow_zone()
        month_ends_s = self.budget.ends_s(now) if self.budget.is_used(now) else None
        around = replace(self._load.surroundings(now, self.limits), month_ends_s=month_ends_s)
        before = self.resting
        self.resting = rest(self.limits, self._orders, around, before is not None and before.is_busy)
        if self.resting is None:
            self.rests.clear()
        else:
            self.rests.set()
