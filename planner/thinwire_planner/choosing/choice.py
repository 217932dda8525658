"""Takes the method that reaches a loss first, or the plainest of those that are about as fast; finds where that
changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from thinwire_planner.methods.method import Forecast, Setting, Variant
from thinwire_proto.errors import ConfigError

TIE = 0.03
"""Methods within this of the fastest count as equally fast: measurements repeat no better."""
BYTES_DEAR = 1e-9
"""Weight of bytes in the order of equally plain variants."""


@dataclass(frozen=True)
class Predicted:
    variant: Variant
    forecast: Forecast

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.forecast.seconds

    @property
    def learning_s(self) -> float:
        """Seconds in which it learns as much as a step of Muon with every gradient exchanged."""
        return self.seconds * self.forecast.tokens


def predict(variants: Iterable[Variant], setting: Setting) -> list[Predicted]:
    """The forecasts of all variants that the setting allows."""
    found = []
    for variant in variants:
        try:
            found.append(Predicted(variant, variant.forecast(setting)))
        except ConfigError:
            continue  # a topology that cannot join so many nodes
    return found


def take(candidates: Sequence[Predicted]) -> Predicted:
    """The one to take: of those within TIE of the fastest, the one closest to an exact average.

    Variants with a caution are passed over, unless there are no others.
    """
    sound = [one for one in candidates if not one.variant.caution] or list(candidates)
    least = min(one.learning_s for one in sound)
    equal = [one for one in sound if one.learning_s <= least * (1 + TIE)]
    return min(equal, key=lambda one: (one.variant.looseness + BYTES_DEAR * one.forecast.bytes_a_parameter, one.name))


def best_of_families(candidates: Sequence[Predicted]) -> dict[str, Predicted]:
    """The one to take of each family, the fastest family first."""
    families: dict[str, list[Predicted]] = {}
    for one in candidates:
        families.setdefault(one.variant.family, []).append(one)
    best = map(take, families.values())
    return {one.variant.family: one for one in sorted(best, key=lambda one: one.learning_s)}


DOUBLINGS = 12
BISECTIONS = 6
ITERATIONS = 100
"""Of a simulation of gossip: fewer than for the figures themselves, where they suffice."""
NODES_MAX = 256
"""Largest number of nodes that is looked at: making the topologies of more takes seconds each."""


@dataclass(frozen=True)
class Change:
    """A place where another family is taken. axis: "rate", "round trip" or "nodes"; value: bits/s, seconds or a count,
    beyond which (`above`: upwards) the choice is `taken`."""

    axis: str
    above: bool
    value: float
    taken: str


@dataclass(frozen=True)
class Axis:
    """A quantity that is varied: its value now, and the setting with another one."""

    name: str
    value: float
    bounds: tuple[float, float]
    at: Callable[[float], Setting]
    step: float = 0.0
    """Values are multiples of this; 0: any."""


def axes(setting: Setting) -> tuple[Axis, ...]:
    network = setting.network
    rate = float(min(network.up_bits_s.min(), network.down_bits_s.min()))
    rtt = max(network.typical_rtt_s, 1e-6)
    per_host = network.per_host
    return (
        Axis("rate", rate, (1e3, 1e12), lambda value: setting.with_network(network.scaled(rate=value / rate))),
        Axis("round trip", rtt, (1e-5, 5.0), lambda value: setting.with_network(network.scaled(rtt=value / rtt))),
        Axis(
            "nodes",
            setting.nodes,
            (2 * per_host, NODES_MAX),
            lambda value: setting.with_network(network.resized(round(value))),
            per_host,
        ),
    )


def changes(setting: Setting, candidates: Sequence[Predicted]) -> list[Change]:
    """The nearest change in both directions of each axis.

    Along an axis the setting is doubled, or halved, until another family is taken, and the place is found by bisection.
    Only variants take part that no other beats at the setting in every way, which keeps it fast.
    """
    finalists, now = finalists_of(candidates), take(candidates).variant.family
    shorter = replace(setting, iterations_max=ITERATIONS)
    if take(predict(finalists, shorter)).variant.family == now:
        setting = shorter  # otherwise the choice is so close that a shorter simulation would find a change right here
    found = []
    for axis in axes(setting):
        for factor in (2.0, 0.5):
            change = _along(axis, factor, finalists, now)
            if change is not None:
                found.append(change)
    return found


def finalists_of(candidates: Sequence[Predicted]) -> list[Variant]:
    """The variants that may be taken somewhere along an axis. Of those whose simulation takes time, the ones that no
    other of the same overlap and slack equals in time, bytes and looseness, and beats in one."""
    sound = [one for one in candidates if not one.variant.caution]
    found = [one.variant for one in sound if not one.variant.is_simulated]
    kinds: dict[tuple[bool, int], list[Predicted]] = {}
    for one in (one for one in sound if one.variant.is_simulated):
        kinds.setdefault((one.variant.is_overlapped, one.variant.slack), []).append(one)
    return found + [one.variant for members in kinds.values() for one in members if not _is_beaten(one, members)]


def _is_beaten(one: Predicted, others: Sequence[Predicted]) -> bool:
    costs = _costs(one)
    return any(
        theirs != costs and all(their <= own for their, own in zip(theirs, costs, strict=True))
        for theirs in map(_costs, others)
    )


def _costs(one: Predicted) -> tuple[float, float, float]:
    return one.learning_s, one.forecast.bytes_a_parameter, one.variant.looseness


def _along(axis: Axis, factor: float, finalists: Sequence[Variant], now: str) -> Change | None:
    def taken(value: float) -> str:
        return take(predict(finalists, axis.at(value))).variant.family

    near = axis.value
    for _ in range(DOUBLINGS):
        far = _rounded(min(max(near * factor, axis.bounds[0]), axis.bounds[1]), axis.step)
        if (far - near) * (factor - 1) <= 0:
            return None  # the setting itself may lie on or beyond a bound, which is then the other way
        found = taken(far)
        if found != now:
            return Change(axis.name, factor > 1, *_between(axis, near, far, found, taken, now))
        near = far
    return None


def _between(
    axis: Axis, near: float, far: float, found: str, taken: Callable[[float], str], now: str
) -> tuple[float, str]:
    for _ in range(BISECTIONS):
        middle = _rounded(math.sqrt(near * far), axis.step)
        if middle in (near, far):
            break
        other = taken(middle)
        if other == now:
            near = middle
        else:
            far, found = middle, other
    return far, found


def _rounded(value: float, step: float) -> float:
    return max(step, round(value / step) * step) if step else value
