"""Rounds that grow: they begin small, and become a few times as large (docs/local-rules.md).

The gradient of a larger round has less noise, so its step may be longer by the square root. Early steps gain little by
larger rounds, and late ones much. So a run takes fewer rounds for as many tokens. The rate stays at its peak until the
rounds have their last size, and falls from there: most rounds are small ones, so a rate that falls with them would be
low for most of the tokens.

Where they become sixteen times as large, votes in nineteen levels have seven until `FINE_FROM`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from thinwire_coordinator.hall.access.settings import Order
from thinwire_planner.methods.growth import FINE_FROM, GROWTHS, Growth, rounds_of
from thinwire_proto.contract import DemoSpec, MergedMuonSpec, RunSpec, ScheduleSpec

BECAUSE = "rounds that grow"
_coarse, _fine = (DemoSpec.model_validate(given) for given in (MergedMuonSpec.DEMO_DEFAULTS, MergedMuonSpec.FINE))
COARSE = {key: value for key, value in _coarse if value != getattr(_fine, key)}


class Size(NamedTuple):
    """Rounds of one size. demo: the section then."""

    seconds: float
    demo: DemoSpec


def levels_at(demo: DemoSpec, larger: int, fine_from: int) -> DemoSpec:
    """The section of rounds that are so many times as large as the first. demo: of the last ones. fine_from: see
    `FINE_FROM`."""
    return demo if larger >= fine_from else demo.model_copy(update=COARSE)


def demos_of(demo: DemoSpec, times: int) -> dict[int, DemoSpec]:
    """The section of each size of the rounds of a run, which become so many times as large. demo: of the last ones."""
    return {larger: levels_at(demo, larger, FINE_FROM.get(times, 1)) for larger, _ in GROWTHS[times]}


def growing(schedule: ScheduleSpec, growth: Growth) -> ScheduleSpec:
    """The schedule of a run until its rounds grow."""
    return schedule.model_copy(update={"shape": "constant"}) if len(growth) > 1 else schedule


def changes_of(schedule: ScheduleSpec, growth: Growth) -> Iterator[dict[str, Any]]:
    """What each growth changes in the schedule of a run until then. schedule: as it would be if none grew."""
    for larger, _ in growth[1:]:
        yield {"learning_rate": float(f"{schedule.learning_rate * larger**0.5:.3g}")} | (
            {"shape": schedule.shape} if larger == growth[-1][0] else {}
        )


def orders_for(run: RunSpec, sizes: Mapping[int, Size]) -> tuple[Order, ...]:
    """The amendments with which the rounds of a run of at least two steps become larger. sizes: by the samples over
    those of the first. In a run of few steps, several hold from one step on."""
    growth = GROWTHS[max(sizes)]
    shares = list(accumulate(rounds_of(max(sizes))))
    found: dict[int, dict[str, Any]] = {}
    size = sizes[1]
    for share, (larger, _), of_schedule in zip(shares, growth[1:], changes_of(run.schedule, growth), strict=False):
        changes: dict[str, Any] = {"round.samples": larger * run.round.samples}
        changes |= {f"schedule.{key}": value for key, value in of_schedule.items()}
        before, size = size, sizes[larger]
        changes |= {f"demo.{key}": value for key, value in size.demo if value != getattr(before.demo, key)}
        if size.seconds != before.seconds:
            changes["round.length_ms"] = round(1000 * size.seconds)
        at = min(max(1, round(run.schedule.steps * share / shares[-1])), run.schedule.steps - 1)
        found[at] = found.get(at, {}) | changes
    return tuple(Order("", changes, BECAUSE, at) for at, changes in found.items())
