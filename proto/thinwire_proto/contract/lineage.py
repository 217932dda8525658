"""The parent of a run, in its contract."""

from __future__ import annotations

from pydantic import Field

from thinwire_proto.contract.sections import Section

ANCESTORS_MAX = 64
HASH = r"^[0-9a-f]{64}$"


class Lineage(Section):
    """Where a run's first parameters are from. contract: the hash of the parent's. step: of the parent, in the unit of
    its `schedule.steps`. fingerprint: of the parameters, under nonce 0. ancestors: the contracts before the parent's,
    the newest first."""

    contract: str = Field(pattern=HASH)
    step: int = Field(ge=0)
    fingerprint: str = Field(pattern=r"^[0-9a-f]{16}$")
    ancestors: tuple[str, ...] = Field((), max_length=ANCESTORS_MAX, strict=False)

    @property
    def contracts(self) -> tuple[str, ...]:
        """The hashes of all contracts that this run goes on from."""
        return (self.contract, *self.ancestors)
