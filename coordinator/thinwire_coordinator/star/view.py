"""The view of a star run."""

from __future__ import annotations

from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.standby.keeper import Keeper
from thinwire_coordinator.hall.view import Plain, RunView, Stage, counted, waiting_for
from thinwire_coordinator.star.feed import Feed
from thinwire_coordinator.star.round.driver import RoundDriver


class StarView(RunView):
    """A star run, read-only."""

    def __init__(self, hall: Hall, driver: RoundDriver, feed: Feed, keeper: Keeper) -> None:
        super().__init__(hall)
        self._keeper = keeper
        self._driver = driver
        self._feed = feed

    @property
    def stage(self) -> Stage:
        if self._driver.machine.complete and self._driver.going_back is None:
            return "complete"
        if self.pause is not None and self._driver.machine.round is None:
            return "paused"
        machine = self._driver.machine
        waits = machine.round is None and (machine.missing_nodes or self._keeper.holds())
        return "waiting" if waits or (machine.sealing and self._keeper.holds()) else "training"

    @property
    def condition(self) -> str:
        if self.pause is not None and self.stage == "paused":
            return self.pause.text
        if (back := self._driver.going_back) is not None:
            return f"going back to step {back}"
        if self.stage == "waiting":
            return self._keeper.holds() or waiting_for(self._driver.machine.missing_nodes)
        return self.stage

    @property
    def step(self) -> int:
        return self._feed.step

    @property
    def round_number(self) -> int:
        return max(self._driver.machine.next_round - 1, 0)

    @property
    def loss(self) -> float | None:
        return self.counts.loss_training

    def clock(self) -> Plain:
        machine = self._driver.machine
        current = machine.round
        if self.stage == "complete":
            return {"phase": "complete", "text": "all updates are sealed"}
        if current is None:
            return {"phase": "waiting", "text": self.condition}
        delivered, awaited = len(current.accepted), machine.awaited
        came = {"delivered": delivered, "length_s": self.contract.round.length_s}
        if machine.sealing:
            return came | {"phase": "sealing", "text": f"sealing {counted(delivered, 'contribution')}"}
        total = delivered + awaited
        of = f"{awaited} of {total} nodes" if delivered else f"all {total} nodes" if total > 1 else "one node"
        text = (
            f"waiting for {of}"
            if self.contract.round.pace == "barrier" and awaited
            else "collecting contributions until the deadline"
        )
        return came | {
            "phase": "open",
            "awaited": awaited,
            "time_left_s": round(max(0.0, current.deadline - self.now), 3),
            "text": text,
        }
