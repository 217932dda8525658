"""Rounds that grow as those of a run that `thinwire-coordinator init` plans: later ones have more samples and a higher
rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire_coordinator.planning.star.growth import changes_of, growing
from thinwire_planner.methods.growth import GROWTHS, Growth
from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.exact.schedule import share_reached


@dataclass(frozen=True)
class Stage:
    """Equally large rounds. begins, ends: the first of them, and the first after them. step: steps of the first size
    that are behind it. times: the samples of the first rounds."""

    begins: int
    ends: int
    step: int
    times: int

    def steps_before(self, number: int) -> int:
        """Steps of the first size before a round of this stage."""
        return self.step + (number - self.begins) * self.times


def stages_of(growth: Growth, steps: int) -> list[Stage]:
    """The stages of a run with as many tokens as so many steps of the first size. Each share must be a whole number of
    its rounds."""
    stages, step, number = [], 0, 0
    for times, share in growth or GROWTHS[1]:
        rounds = round(share * steps) // times
        stages.append(Stage(number, number + rounds, step, times))
        step, number = step + rounds * times, number + rounds
    return stages


def schedules_of(schedule: ScheduleSpec, growth: Growth, stages: Sequence[Stage]) -> list[ScheduleSpec]:
    """The schedule of each stage, by the amendment at its beginning. schedule: as it would be if no rounds grew."""
    found = [growing(schedule, growth)]
    for stage, changes in zip(stages[1:], changes_of(schedule, growth), strict=True):
        found.append(found[-1].bent(changes, stage.begins, share_reached(found[-1], stage.begins)))
    return found
