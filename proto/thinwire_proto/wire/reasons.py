"""The possible outcomes of a contribution, for both ends. `reason_numbers` has their numbers on the wire."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """The outcome of a contribution: COUNTED, or the reason why it was not counted.

    Values are metric labels, and names are those in service.proto. words: what the page says of the contribution.
    """

    words: str

    COUNTED = "counted", "counted"
    LATE = "late", "too late"
    FUTURE_ROUND = "future_round", "for a future round"
    REPLICA_DIFFERS = "replica_differs", "its replica differs"
    BASE_AGE = "base_age", "based on a step that is too old"
    MALFORMED = "malformed", "malformed"
    OVER_LEASE = "over_lease", "more samples than leased"
    NO_LEASE = "no_lease", "without a lease"
    DUPLICATE = "duplicate", "twice in a round"
    VOID = "void", "the round was void"
    NOTHING_TRAINED = "nothing_trained", "nothing was trained"
    UNKNOWN = "unknown", "in no update and in no open round"
    SIGNATURE = "signature", "not signed by the node"
    SUSPECTED = "suspected", "its votes are suspected"

    def __new__(cls, label: str, words: str) -> Reason:
        reason = object.__new__(cls)
        reason._value_ = label
        reason.words = words
        return reason


OUTCOMES = tuple(reason.value for reason in Reason)
