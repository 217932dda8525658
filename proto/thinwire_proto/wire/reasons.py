"""The possible outcomes of a contribution, for both ends. `reason_numbers` has their numbers on the wire."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """The outcome of a contribution: COUNTED, or the reason why it was not counted. Values are metric labels."""

    COUNTED = "counted"
    LATE = "late"
    FUTURE_ROUND = "future_round"
    REPLICA_DIFFERS = "replica_differs"
    BASE_AGE = "base_age"
    MALFORMED = "malformed"
    OVER_LEASE = "over_lease"
    NO_LEASE = "no_lease"
    DUPLICATE = "duplicate"
    VOID = "void"
    NOTHING_TRAINED = "nothing_trained"
    UNKNOWN = "unknown"
    SIGNATURE = "signature"
    SUSPECTED = "suspected"
