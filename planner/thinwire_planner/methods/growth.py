"""Rounds that grow: they begin small, and become a few times as large (docs/local-rules.md).

    T = Σ_g share(g)·T(g)/g

T(g): of a round that is as large as g of the first, which is g steps. share(g): of all tokens. So whatever is exchanged
once a round is exchanged `mean_growth` times more seldom.
"""

from __future__ import annotations

from collections.abc import Callable

from thinwire_planner.methods.method import Forecast

Growth = tuple[tuple[int, float], ...]
"""(times the samples of the first rounds, share of all tokens), in turn."""
GROWTHS: dict[int, Growth] = {
    1: ((1, 1.0),),
    2: ((1, 1 / 16), (2, 15 / 16)),
    4: ((1, 1 / 16), (2, 1 / 16), (4, 7 / 8)),
    8: ((1, 1 / 16), (2, 1 / 16), (4, 1 / 8), (8, 3 / 4)),
    16: ((1, 1 / 16), (2, 1 / 16), (4, 1 / 8), (8, 3 / 16), (16, 9 / 16)),
}
"""By how many times as large rounds become. docs/convergence has measured the last two."""
FINE_FROM = {16: 8}
"""In a run whose rounds become so many times as large: votes have fine levels in rounds of at least so many times the
first samples. Two thirds of the rounds are over by then, with a quarter of the tokens."""
RATE_PART = {16: 2 / 3}
"""In a run whose rounds become so many times as large: its learning rate over that of other runs. The rate rises with
the square root of the samples, and four times the usual one is too high (docs/log/convergence.md, 2026-12-01)."""
GROWING = ", rounds growing"
"""Part of the names of variants whose rounds do."""


def rounds_of(times: int) -> list[float]:
    """The rounds of each stage, over those of a run whose rounds do not grow."""
    return [share / larger for larger, share in GROWTHS[times]]


def mean_growth(times: int) -> float:
    """Times the samples of the first rounds that a round has in the mean."""
    return 1 / sum(rounds_of(times))


def over_stages(times: int, tokens: float, forecast_of: Callable[[int], Forecast]) -> Forecast:
    """The mean step of a run whose rounds become so many times as large. tokens: see `Forecast`. forecast_of: a step of
    rounds that are so many times as large as the first."""
    stages = [(share, forecast_of(larger)) for larger, share in GROWTHS[times]]
    names = [name for name, _ in stages[0][1].parts]
    parts = ((name, sum(share * dict(one.parts)[name] for share, one in stages)) for name in names)
    return Forecast(
        sum(share * one.seconds for share, one in stages),
        sum(share * one.bytes_a_parameter for share, one in stages),
        tuple(parts),
        tokens,
    )


def growth_in_words(times: int) -> str:
    """The end of a variant's name. times: by how many times as large its rounds become."""
    return f"{GROWING} to {times} times" if times > 1 else ""
