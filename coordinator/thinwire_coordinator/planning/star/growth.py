"""Rounds that grow: they begin small, and become a few times as large (docs/local-rules.md).

The gradient of a larger round has less noise, so its step may be longer by the square root. Early steps gain little by
larger rounds, and late ones much. So a run takes fewer rounds for as many tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from thinwire_coordinator.hall.access.settings import Order
from thinwire_proto.contract import RunSpec

Growth = tuple[tuple[int, float], ...]
"""(times the samples of the first rounds, share of all tokens), in turn."""
GROWTHS: dict[int, Growth] = {
    1: ((1, 1.0),),
    2: ((1, 1 / 16), (2, 15 / 16)),
    4: ((1, 1 / 16), (2, 1 / 16), (4, 7 / 8)),
    8: ((1, 1 / 16), (2, 1 / 16), (4, 1 / 8), (8, 3 / 4)),
}
"""By how many times as large rounds become. docs/convergence has measured the last."""
BECAUSE = "rounds that grow"


def mean_growth(times: int) -> float:
    """Times the samples of the first rounds that a round has in the mean."""
    return 1 / sum(_rounds(times))


def _rounds(times: int) -> list[float]:
    """The rounds of each stage, over those of a run whose rounds do not grow."""
    return [share / larger for larger, share in GROWTHS[times]]


def orders_for(run: RunSpec, times: int, lengths_ms: dict[int, int]) -> Iterator[Order]:
    """The amendments with which a run's rounds become so many times as large. lengths_ms: of rounds that are so many
    times as large."""
    shares = list(accumulate(_rounds(times)))
    for share, (larger, _) in zip(shares, GROWTHS[times][1:], strict=False):
        changes = {
            "round.samples": larger * run.round.samples,
            "schedule.learning_rate": float(f"{run.schedule.learning_rate * larger**0.5:.3g}"),
            "schedule.steps": run.schedule.steps,  # given again, so that the rate goes on from where it stands
        }
        if lengths_ms[larger] != run.round.length_ms:
            changes["round.length_ms"] = lengths_ms[larger]
        yield Order("", changes, BECAUSE, round(run.schedule.steps * share / shares[-1]))
