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

from pydantic import BaseModel, FailFast, Field, PrivateAttr, ValidationError, model_validator

from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.contract.run import RunSpec
from thinwire_proto.contract.sections import CONTRACT_BYTES_MAX, Parameter, Section, canonical_json, read_canonical
from thinwire_proto.contract.unions import UNKNOWN_KIND
from thinwire_proto.errors import ContractError
from thinwire_proto.version import VERSION

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


UNKNOWN = ("extra_forbidden", UNKNOWN_KIND)
"""pydantic's error types for keys and kinds that another thinwire may know."""


def parse_contract(data: bytes) -> Contract:
    """Read a contract. Raises ContractError."""
    document = read_canonical(data, "a contract", CONTRACT_BYTES_MAX)
    version = document.get("version")
    if type(version) is not int:
        raise ContractError("this is not a contract: it does not say which version of the format it has")
    if version != FORMAT:
        raise ContractError(f"thinwire {VERSION} cannot read this contract: it has version {version}, not {FORMAT}")
    try:
        contract = Contract.model_validate(document)
    except ValidationError as error:
        raise ContractError(f"thinwire {VERSION} cannot read this contract: {plain(error)}{_hint(error)}") from None
    return contract.as_read_from(data)


def run_differences(held: Contract, run: RunSpec) -> list[str]:
    """The fields in which a run file differs from a run's contract, in words. See `differences`.

    What a run file leaves out, because the coordinator computes it, is as in the contract.
    """
    here, there = held.model_dump(mode="json"), run.model_dump(mode="json")
    for section, spec, asked in (("data", held.data, run.data), ("model", held.model, run.model)):
        if type(spec) is type(asked):
            there[section] |= {key: here[section][key] for key in (*spec.DERIVED, *spec.LOCAL)}
    there["model"] |= run.model.completed_like(held.model)
    found: list[str] = []
    for section in RunSpec.model_fields:
        ours, theirs = here[section], there[section]
        if ours.get("kind") != theirs.get("kind"):  # the keys of two kinds cannot be compared
            ours, theirs = {"kind": ours["kind"]}, {"kind": theirs["kind"]}
        found += _differences(ours, theirs, section)
    return found


def differences(ours: Contract, theirs: Contract) -> list[str]:
    """The fields in which two contracts differ, in words: `demo.k: 32 here, 64 there`."""
    left_out = {"version"}
    if ours.model != theirs.model:
        left_out.add("parameters")  # the model determines them
    here, there = (contract.model_dump(mode="json", exclude=left_out) for contract in (ours, theirs))
    return _differences(here, there, "")


def _differences(ours: Any, theirs: Any, path: str) -> list[str]:
    if ours == theirs:
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found: list[str] = []
        for key in sorted(ours.keys() | theirs.keys()):
            found += _differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
        return found
    if isinstance(ours, list) and isinstance(theirs, list) and path == "parameters":
        by_name = [{entry["name"]: entry["shape"] for entry in side} for side in (ours, theirs)]
        if by_name[0] != by_name[1]:
            return _differences(by_name[0], by_name[1], path)
    return [f"{path}: {ours} here, {theirs} there"]


def _hint(error: ValidationError) -> str:
    """The end of an error text, where a key or a kind is unknown."""
    is_unknown = any(entry["type"] in UNKNOWN for entry in error.errors())
    return "; it needs another thinwire, or a package that extends it" if is_unknown else ""


def plain(error: ValidationError) -> str:
    """pydantic's errors in one line: for each the field's dotted name, the problem, and the given value."""
    found = []
    for entry in error.errors():
        field = ".".join(str(part) for part in entry["loc"])
        given = "" if isinstance(entry["input"], dict | BaseModel) else f" (it is {entry['input']!r:.80})"
        if entry["type"] == "extra_forbidden":
            found.append(f"{field}: there is no such key")
        elif entry["type"] == "value_error":
            found.append(f"{field + ': ' if field else ''}{entry['ctx']['error']}")
        else:
            found.append(f"{field}: {entry['msg'][0].lower()}{entry['msg'][1:]}{given}")
    return "; ".join(found)
