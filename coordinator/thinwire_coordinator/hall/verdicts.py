"""What a run may find about a node, and why: values of events, logs and metrics."""

from __future__ import annotations

from enum import Enum


class Cause(Enum):
    """The causes of suspicion. `sequential` has the tests. Values are labels of events."""

    AGAINST = "against"
    """Its votes contradict those of the rest."""
    NOISE = "noise"
    """Its votes have nothing in common with those of the rest."""
    COPY = "copy"
    """Its votes are those of another node."""
    REPEAT = "repeat"
    """Its votes are its own votes of an earlier round."""
    EMPTY = "empty"
    """It has far fewer votes than the others."""
    SILENCE = "silence"
    """It takes leases and contributes nothing."""
    MISMATCH = "mismatch"
    """The fingerprint of its parameters differs from the coordinator's."""
    MALFORMED = "malformed"
    """Its payloads cannot be read."""
    AUDIT = "audit"
    """Its votes do not come from the samples of its lease."""
    HELD_OUT = "held_out"
    """The held-out losses that it measured differ from those that the coordinator found."""


class Verdict(Enum):
    """The effect of a decision. Values are labels of metrics and events."""

    SUSPECTED = "suspected"
    """The node's votes are not merged from now on, but still observed."""
    LOWERED = "lowered"
    """The node counts as a newcomer."""
    CLEARED = "cleared"
    """The node counts again, as a newcomer."""
    BANNED = "banned"
    """The node is refused until `until`."""
