"""The sequential tests: how evidence adds up over rounds, and how often that errs.

The problem: one round says little about a node, and a threshold on a mean over a fixed number of rounds is either slow
or wrong. Page's test (Biometrika 41, 1954) adds up the logarithm of the likelihood ratio of `hostile` to `honest`, and
never falls below 0, so that a node that turns hostile late is found as quickly. If honest evidence is at most as likely
as the test assumes, the mean number of rounds to a false alarm is at least e^h for an alarm at h (Lorden 1971).

    S ← max(0, S + ln p(evidence | hostile) − ln p(evidence | honest))

S ≥ ALARM suspects a node, and S = 0 clears it. Evidence goes on meanwhile: S ≥ 2·ALARM bans it, if the cause may ban.
So a ban needs as much evidence again, all of it gathered while the node was told that it is suspected.

Agreement z: votes at random have mean 0 and variance 1, exactly. Honest votes have a mean above 0, and a much larger
spread, since gradients have a few strong directions. Measured (docs/trust.md): the spread is a third to a half of the
median node's z, and at least 2. So a node with other data, whose z is spread around a small mean, does not look like
noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from thinwire_coordinator.hall.events import Cause

FALSE_ALARM = 1e-4
"""An honest node is suspected wrongly at most once in 1 / FALSE_ALARM rounds on average, by each test."""
ALARM = -math.log(FALSE_ALARM)
STEP_MAX = 3.0
"""The most that one round may add or take away. No single round suspects anybody: it takes four at least."""

EFFECT = 0.5
"""An honest node is assumed to agree half as much as the median node does."""
SPREAD = 0.5
SPREAD_MIN = 2.5
"""Standard deviation of an honest node's agreement: this share of the median's agreement, and at least this."""
INFORMATIVE = 1.5
"""Agreement of the median node below which a round says nothing about anybody."""
AUDIT_EFFECT = 0.75
"""An honest node's audits are assumed to show this share of what is typical."""
AUDITS_INFORMATIVE = 0.5
"""The typical z of audits below which they judge nobody: the model or the leases are too small for them."""


@dataclass(frozen=True)
class Binary:
    """A test of evidence that is there or not. honest, hostile: how probable it is in a round of such a node."""

    honest: float
    hostile: float

    def step(self, seen: bool) -> float:
        if seen:
            return clipped(math.log(self.hostile / self.honest))
        return clipped(math.log((1 - self.hostile) / (1 - self.honest)))


BINARY = {
    Cause.COPY: Binary(0.005, 0.5),
    Cause.REPEAT: Binary(0.005, 0.5),
    Cause.EMPTY: Binary(0.005, 0.5),
    Cause.SILENCE: Binary(0.25, 0.95),
    Cause.MISMATCH: Binary(0.05, 0.6),
    Cause.MALFORMED: Binary(0.005, 0.5),
    Cause.HELD_OUT: Binary(0.005, 0.5),
}
"""honest: assumed, and well above what was measured (docs/trust.md)."""
MAY_BAN = frozenset(Cause) - {Cause.NOISE, Cause.SILENCE, Cause.HELD_OUT}
"""A node with other data may have little in common with the rest, a slow link may be silent, and a card may measure
losses less exactly than it trains: none of them is banned."""


def clipped(step: float) -> float:
    return max(-STEP_MAX, min(STEP_MAX, step))


def noise_step(agreement: float, median: float) -> float:
    """Votes at random, z ~ N(0, 1), against honest ones, z ~ N(effect, spread²)."""
    effect, spread = EFFECT * median, max(SPREAD * median, SPREAD_MIN)
    return clipped(math.log(spread) - agreement**2 / 2 + ((agreement - effect) / spread) ** 2 / 2)


def against_step(agreement: float, median: float) -> float:
    """Votes that contradict, z ~ N(−effect, spread²), against the worst honest ones, z ~ N(0, spread²)."""
    effect, spread = EFFECT * median, max(SPREAD * median, SPREAD_MIN)
    return clipped(effect / spread**2 * (-agreement - effect / 2))


def audit_step(z: float, typical: float) -> float:
    """Votes that do not follow the node's lease, z ~ N(0, 1), against votes that follow it, z ~ N(effect, 1)."""
    effect = AUDIT_EFFECT * typical
    return clipped(effect * (effect / 2 - z))


def added(before: float, step: float) -> float:
    """S after one more piece of evidence."""
    return max(0.0, min(2 * ALARM, before + step))
