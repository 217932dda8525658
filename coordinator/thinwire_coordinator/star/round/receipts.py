"""Receipts: what the coordinator answers to a contribution."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_proto.wire.reasons import Reason


@dataclass(frozen=True)
class Receipt:
    """The outcome of one contribution.

    text: shown to people. step: the update that contains the contribution. arrived_us: when its last byte arrived, by
    the coordinator's clock; 0 if it did not arrive completely or if its arrival is unknown.
    """

    reason: Reason
    text: str = ""
    step: int = 0
    arrived_us: int = 0

    @property
    def counted(self) -> bool:
        return self.reason is Reason.COUNTED
