"""An amendment as the ledger, the wire and the disk have it. See `exact.amendments` for what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thinwire_proto.contract.sections import canonical_json, read_canonical
from thinwire_proto.errors import ContractError
from thinwire_proto.version import VERSION

AMENDMENT_BYTES_MAX = 4096
AMENDMENTS_MAX = 256
"""Amendments of a run. Each node keeps all of them, and gets them again each time it joins."""
REASON_LENGTH_MAX = 500
CHANGES_MAX = 32
STEP_MAX = 1 << 53
POSITION_MAX = 1 << 62
ID_LENGTH_MAX = 64
REWIND = "rewind"
"""Among the changes: the earlier step that the run goes back to. It is no key of the contract."""
SAMPLES, AGAIN = "samples", "again"
"""Beside REWIND among the changes: nodes train on the samples of the steps that are given up again."""


@dataclass(frozen=True)
class Amendment:
    """A change of a run's contract.

    step: the first update that is made under it; its row has the amendment. changes: new values by dotted key, such as
    `schedule.learning_rate`, and REWIND with SAMPLES. because: the organizer's reason, in words. id: names it before
    its step is known. position: the first sample position that was never granted to any node before it. version: of the
    thinwire that made it.
    """

    step: int
    changes: Mapping[str, Any] = field(hash=False)
    because: str = ""
    id: str = ""
    position: int = 0
    version: str = VERSION

    @property
    def written(self) -> bytes:
        """Canonical JSON, as rows and messages have it."""
        return canonical_json(
            {
                "step": self.step,
                "set": dict(self.changes),
                "because": self.because,
                "id": self.id,
                "position": self.position,
                "version": self.version,
            }
        )

    @property
    def rewind(self) -> int | None:
        """The step whose parameters the row of `step` brings back, in place of an update."""
        return self.changes.get(REWIND)

    @property
    def begins_samples_again(self) -> bool:
        """Whether nodes train on the samples of the given-up steps again."""
        return SAMPLES in self.changes

    @property
    def in_words(self) -> str:
        """`schedule.learning_rate = 0.0009: loss spike at 4,100`."""
        again = " and its samples" if self.begins_samples_again else ""
        back = [] if self.rewind is None else [f"back to step {self.rewind}{again}"]
        keys = sorted(self.changes.keys() - {REWIND, SAMPLES})
        changes = ", ".join([*back, *(f"{key} = {value_in_words(self.changes[key])}" for key in keys)])
        return f"{changes}: {self.because}" if self.because else changes


def value_in_words(value: Any) -> str:
    """The value of a key. Held-out sets are named, without the hashes of their tokens."""
    if isinstance(value, Mapping) and value and all(isinstance(one, Mapping) for one in value.values()):
        return ", ".join(sorted(value))
    return str(value)


def parse_amendment(data: bytes) -> Amendment:
    """Read an amendment. Raises ContractError if it is none, or beyond its bounds."""
    found = read_canonical(data, "an amendment", AMENDMENT_BYTES_MAX)
    kinds = {"step": int, "set": dict, "because": str, "id": str, "position": int, "version": str}
    if {key: type(value) for key, value in found.items()} != kinds:
        raise ContractError("this is not an amendment: it has other keys or values")
    if not (
        0 <= found["step"] <= STEP_MAX
        and 0 <= found["position"] <= POSITION_MAX
        and 0 < len(found["set"]) <= CHANGES_MAX
        and len(found["because"]) <= REASON_LENGTH_MAX
        and max(len(found["id"]), len(found["version"])) <= ID_LENGTH_MAX
    ):
        raise ContractError("this is not an amendment: it is beyond its bounds")
    return Amendment(*(found[name] for name in ("step", "set", "because", "id", "position", "version")))
