"""Decides whether to train, extract a contribution or wait. A pure function of what the node knows; each decision has a
reason.

A node that waits for each update before it trains again leaves a machine with a thin link idle most of the time. A node
that never waits trains on parameters that are out of date. So the node keeps training while a round can still accept a
base of that age. It drops a gradient that no round can accept any more (docs/time.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from thinwire_proto.contract import RoundSpec
from thinwire_proto.limits import margin_s

BATCHES_A_ROUND = 4
"""A micro-batch, or a batch of held-out samples, is at most this fraction of a round long, because updates are applied
between them."""

SENDING_SHARE = 0.5
"""The part of a round that the upload of a contribution may take if the node's owner limits the rate."""
LEAST_SHARE = 1 / 8
"""Of the components that others send, a node sends at least so many."""


@dataclass(frozen=True)
class RoundView:
    """The open round. Times are on the node's own clock."""

    step: int
    deadline: float
    error: float  # bound on the deadline's error


@dataclass(frozen=True)
class PacingView:
    """The node's knowledge at the time `now`."""

    now: float
    round: RoundView | None
    contributed: bool  # to that round, with or without samples
    out: bool  # a contribution has no outcome yet
    hurry: bool  # a round closed without this node, so contribute early
    replica_step: int
    base_step: int | None  # of the gradient since the last extraction
    samples: int  # in that gradient
    leased: int  # positions left in the lease
    ready: int  # of these, positions at the head whose data are here; at most `micro_batch`
    sample_s: float
    tail_s: float
    micro_batch: int  # the volunteer's limit on samples per micro-batch
    to_measure: int = 0  # held-out samples that can be measured now
    rests_until: float = 0.0  # the time until which the machine computes nothing: see `LentTime`
    measure_s: float = 0.0  # seconds to measure a held-out sample; 0.0: not known, and no longer than to train one


@dataclass(frozen=True)
class Train:
    samples: int
    why: str


@dataclass(frozen=True)
class Measure:
    samples: int
    why: str


@dataclass(frozen=True)
class Extract:
    why: str


@dataclass(frozen=True)
class SayNothing:
    why: str


@dataclass(frozen=True)
class Drop:
    why: str


@dataclass(frozen=True)
class Wait:
    """phase: what the wait counts as, for data or for the rest that the owner wants. until: the time of the next
    decision, if it is due by then."""

    why: str
    phase: Literal["wait", "data", "rest"] = "wait"
    until: float | None = None


Decision = Train | Measure | Extract | SayNothing | Drop | Wait


def decide(view: PacingView, spec: RoundSpec) -> Decision:
    decision = _while_working(view, spec)
    if isinstance(decision, Train | Measure) and view.now < view.rests_until:
        return Wait("resting, because of --max-compute", "rest", view.rests_until)
    return decision


def _while_working(view: PacingView, spec: RoundSpec) -> Decision:
    """The decision of a machine that need not rest."""
    decision = _decide(view, spec)
    if view.to_measure:
        samples = min(view.to_measure, _measured_at_once(view, spec))
        if isinstance(decision, Wait):
            return Measure(samples, f"besides, {decision.why}")
        if isinstance(decision, Train) and (fitting := min(samples, _measurable(view, spec))) > 0:
            return Measure(fitting, "the round has time for it")
    return decision


def _measured_at_once(view: PacingView, spec: RoundSpec) -> int:
    """The largest batch of held-out samples: the volunteer's limit, or fewer if that would take longer than a
    micro-batch may, because updates wait for it too. One if nobody knows yet how long it takes."""
    sample_s = view.measure_s or view.sample_s
    return max(1, min(view.micro_batch, _at_once(sample_s, spec))) if sample_s > 0 else 1


def _measurable(view: PacingView, spec: RoundSpec) -> int:
    """The held-out samples that there is time to measure before training.

    At pace barrier, the time that the node's share takes is reserved; at pace clock, where every sample counts, half of
    the round."""
    if view.round is None or view.sample_s == 0:
        return 0
    reserved_s = (spec.samples - view.samples) * view.sample_s if spec.pace == "barrier" else spec.length_s / 2
    left_s = extract_at(view, view.round, spec) - view.now - reserved_s
    return int(left_s / (view.measure_s or view.sample_s))


def _decide(view: PacingView, spec: RoundSpec) -> Decision:
    stands_on = max(view.round.step if view.round else 0, view.replica_step)
    if view.base_step is not None and view.base_step < stands_on - spec.base_age_max:
        return Drop(f"the gradient is of step {view.base_step}, but the round is of step {stands_on}")
    if view.round is None:
        return Wait("no round is open")
    may_contribute = not view.contributed and not view.out and view.now <= view.round.deadline
    fits = view.round.step - spec.base_age_max <= view.replica_step <= view.round.step
    if may_contribute and fits:
        if view.samples and (why := _due(view, view.round, spec)):
            return Extract(why)
        if not view.samples and not view.leased:
            return SayNothing("nothing was trained, and the lease is used up")
        if not view.samples and not view.ready and view.now >= extract_at(view, view.round, spec):
            return SayNothing("nothing was trained, because the data have not arrived")
    return _train_or_wait(view, view.round, spec)


def fitting_k(spec: RoundSpec, k: int, tiles: int, component_bytes: float, bytes_s: float) -> int:
    """The components of a tile, at most `k`, that a node may send whose owner limits its upload to `bytes_s`.

    Their upload takes SENDING_SHARE of a round, or more: of far fewer than others send, nobody could tell whether they
    are a node's own (docs/trust.md: `empty`). component_bytes: of a component in a payload."""
    fitting = int(SENDING_SHARE * spec.length_s * bytes_s / (component_bytes * tiles))
    return max(math.ceil(LEAST_SHARE * k), min(k, fitting))


def extract_at(view: PacingView, current: RoundView, spec: RoundSpec) -> float:
    """The time to extract a contribution so that it arrives before the deadline."""
    return current.deadline - current.error - view.tail_s - margin_s(spec.length_s)


def _due(view: PacingView, current: RoundView, spec: RoundSpec) -> str:
    """The reason to extract now; empty if there is time for more training."""
    if _share_is_trained(view, spec):
        return "the share is trained"
    if not view.leased:
        return "the lease is used up"
    if view.hurry:
        return "the previous round closed without this node"
    if view.now + view.sample_s > extract_at(view, current, spec):
        return "time is up"
    if view.rests_until > extract_at(view, current, spec):
        return "the machine rests until time is up"
    return ""


def _train_or_wait(view: PacingView, current: RoundView, spec: RoundSpec) -> Decision:
    # samples trained now go into this round or into the next one, whose base is one step later
    aims_at = current.step + (1 if view.contributed or view.out or view.now > current.deadline else 0)
    if view.replica_step < aims_at - spec.base_age_max:
        return Wait(f"the update to step {aims_at - spec.base_age_max} has not arrived")
    if not view.leased:
        return Wait("the lease is used up")
    if _share_is_trained(view, spec) and spec.base_age_max == 0:
        return Wait("the share is trained")
    if not view.ready:
        due = extract_at(view, current, spec)
        return Wait("the data of the next samples have not arrived", "data", due if due > view.now else None)
    return Train(_size(view, current, spec), f"towards step {aims_at}")


def _share_is_trained(view: PacingView, spec: RoundSpec) -> bool:
    """Whether the node has trained the samples that the other nodes wait for; only at pace barrier.

    A node that waits for the next round keeps training while its lease lasts. Otherwise one node's lost packets would
    leave all machines idle."""
    return spec.pace == "barrier" and view.samples >= spec.samples


def _at_once(sample_s: float, spec: RoundSpec) -> int:
    """The samples that may be computed before an update has its turn."""
    return int(spec.length_s / BATCHES_A_ROUND / sample_s)


def _size(view: PacingView, current: RoundView, spec: RoundSpec) -> int:
    """The samples of the next micro-batch: the volunteer's limit, or fewer if that would take too long."""
    size = min(view.micro_batch, view.leased, view.ready)
    if spec.pace == "barrier" and not _share_is_trained(view, spec):
        size = min(size, spec.samples - view.samples)
    if view.sample_s > 0:
        size = min(size, _at_once(view.sample_s, spec))
        left = extract_at(view, current, spec) - view.now
        if not view.contributed and not view.out and left > 0:
            size = min(size, int(left / view.sample_s))
    return max(1, size)
