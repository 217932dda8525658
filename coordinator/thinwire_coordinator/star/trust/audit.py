"""The statistic of an audit: do a contribution's votes follow the gradient of its node's lease?

The problem: votes are the signs of the largest components of a momentum, to which the newest gradient contributes
little. So a vote hardly depends on the lease, and a recomputed gradient never equals what a node sent, on any hardware.
And all gradients have much in common: votes that come from no data at all agree with the gradient of any lease.

The sketch: two nodes are audited at a time, and each lease is the control of the other. T = Σ s·d / √Σd² has the signs
s of the votes, and the difference d of the two leases' gradients, in components. What all gradients have in common is
not in d. For votes that come from neither lease, d is as probable as −d, so T is symmetric about 0. But its spread is
far above 1, because gradients differ in a few strong directions. So the spread is measured, with the votes of nodes
that have neither lease (`references`): z = (T − mean) / spread over them. bench/adversary/audit_power.py measures z.

Before they are subtracted, gradients are divided by their own root mean square, parameter by parameter, as Adam would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from thinwire_coordinator.star.trust.ballots import Ballot, Components
from thinwire_coordinator.star.trust.evidence import Audited

REFERENCES_MIN = 4
REFERENCES_MAX = 32
PRIOR_SPREAD = 0.22
"""Spread of T for votes that follow neither lease, in units of √votes, as measured; counts like PRIOR_WEIGHT
references."""
PRIOR_WEIGHT = 2
VOTES_MIN = 50
"""Votes below which a contribution is not audited."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Subject:
    """A contribution that can be audited. positions: of samples that its node reported with it."""

    ballot: Ballot
    positions: tuple[int, ...]


def components_of(ballots: Sequence[Ballot], components: int) -> Components:
    """The components, ascending, that an audit has to know the gradients' difference at. components: of the layout;
    memory is a byte for each, however many votes there are."""
    wanted = np.zeros(components, np.bool_)
    for ballot in ballots:
        wanted[ballot.components] = True
    return np.flatnonzero(wanted)


def audited(
    own: Ballot, other: Ballot, references: Sequence[Ballot], components: Components, difference: Floats
) -> tuple[Audited, ...]:
    """z of both contributions; nothing if there are too few references.

    difference: of the gradient of `own`'s lease and that of `other`'s, at `components`.
    """
    if len(references) < REFERENCES_MIN:
        return ()
    found = []
    for ballot, sign in ((own, 1), (other, -1)):
        if len(ballot) < VOTES_MIN:
            continue
        among = np.array([_follows(reference, components, difference) for reference in references])
        prior = PRIOR_WEIGHT * PRIOR_SPREAD**2 * len(ballot)
        spread = math.sqrt((prior + np.square(among - among.mean()).sum()) / (PRIOR_WEIGHT + len(among) - 1))
        t = _follows(ballot, components, difference)
        found.append(Audited(ballot.node, sign * (t - float(among.mean())) / spread))
    return tuple(found)


def _follows(ballot: Ballot, components: Components, difference: Floats) -> float:
    """T of a ballot."""
    d = difference[np.searchsorted(components, ballot.components)].astype(np.float64)
    length = float(np.sqrt(np.square(d).sum()))
    return float(np.where(ballot.positive, d, -d).sum()) / length if length else 0.0
