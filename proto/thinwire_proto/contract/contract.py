"""The contract: a run's specification together with the values derived from it.

A contract's name is the SHA-256 of its bytes as written. A `Contract` keeps these bytes, so its name never depends on
what this version would write. Amendments change what it says and not its name: the ledger has them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field, PrivateAttr, model_validator

from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.contract.run import RunSpec
from thinwire_proto.contract.sections import Parameter, Section, canonical_json

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


FORMAT: Literal[3] = 3
"""The version of the format. Contracts of another version are refused."""


class Contract(RunSpec):
    """A complete contract. parameters: the manifest. lineage: the run that this one goes on from.
    first_seed: what the first parameters were drawn with; None if they were loaded."""

    version: Literal[3] = FORMAT
    parameters: Annotated[tuple[Parameter, ...], FailFast()] = Field(min_length=1, max_length=1 << 16, strict=False)
    lineage: Lineage | None = None
    first_seed: int | None = Field(None, ge=0, lt=1 << 53)

    _written: bytes | None = PrivateAttr(None)
    _before: Contract | None = PrivateAttr(None)
    _amendments: tuple[Amendment, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _complete(self) -> Contract:
        for section, spec in (("model", self.model), ("data", self.data)):
            for key in spec.LOCAL:
                if getattr(spec, key):
                    raise ValueError(f"{section}.{key} is a path, and a contract has no paths")
        self.model.check_complete()
        self.data.check_complete(self.model)
        names = [parameter.name for parameter in (*self.parameters, *self.moments)]
        if len(set(names)) != len(names):
            raise ValueError("parameters, and the moments of the rule, must have different names")
        return self

    @property
    def written(self) -> bytes:
        """The bytes whose hash names this contract: the bytes it was read from, or its canonical JSON if it is new."""
        if self._written is None:
            self._written = canonical_json(self.model_dump(mode="json"))
        return self._written

    def as_read_from(self, data: bytes) -> Contract:
        """Set the bytes that this contract was read from, and return it."""
        self._written = data
        return self

    @cached_property
    def hash(self) -> bytes:
        """The contract's name: SHA-256 of `written`, 32 bytes."""
        return hashlib.sha256(self.written).digest()

    @cached_property
    def moments(self) -> tuple[Parameter, ...]:
        """The tensors that every replica holds alike beside the parameters: see `RuleSpec.moments`."""
        return self.rule.moments(self.parameters)

    @property
    def state_elements(self) -> int:
        """Numbers of a replica: parameters and moments."""
        return sum(prod(one.shape) for one in (*self.parameters, *self.moments))

    @property
    def first(self) -> Contract:
        """The contract that the run began with, which names it."""
        found = self
        while found.before is not None:
            found = found.before
        return found

    @property
    def before(self) -> Contract | None:
        """The contract without the last amendment; None if it has none."""
        return self._before

    @property
    def amendments(self) -> tuple[Amendment, ...]:
        """The amendments that this contract has, in the order of their steps. See `exact.amendments`."""
        return self._amendments

    def with_amendment(self, amendment: Amendment, sections: Mapping[str, Section]) -> Contract:
        """This run's contract with an amendment and the sections that it changes: another content, the same name.

        `exact.amendments.amended` makes the sections."""
        found = self.model_copy(update=sections)
        found._written, found._before = self.written, self
        found._amendments = (*self._amendments, amendment)
        return found

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Contract:
        """Copy the contract. With an `update`, the copy is a new contract, which is validated."""
        if not update:
            return super().model_copy(deep=deep)
        kept = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate(kept | dict(update))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contract) and self.written == other.written and self._amendments == other._amendments

    def __hash__(self) -> int:
        return hash(self.written)
