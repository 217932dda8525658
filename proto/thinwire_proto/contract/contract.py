"""The contract: a run's specification together with the values derived from it.

A contract's name is the SHA-256 of its bytes as written. A `Contract` keeps these bytes, so its name never depends on
what this version would write. Therefore a field added later does not make old state directories unusable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field, PrivateAttr, model_validator

from thinwire_proto.contract.run import UNIONS, RunSpec
from thinwire_proto.contract.sections import Parameter, Section, canonical_json
from thinwire_proto.version import PATTERN, newest

FORMAT: Literal[2] = 2
"""The format version of new contracts; `version_1` reads the previous one."""
FORMAT_SINCE = "0.2.0"
"""The first thinwire version that reads this format."""


class Contract(RunSpec):
    """A complete contract.

    parameters: the manifest. requires: the oldest thinwire version that knows all keys and kinds in this contract.
    """

    version: Literal[1, 2] = FORMAT
    requires: str = Field("", pattern=f"^({PATTERN})?$")
    parameters: Annotated[tuple[Parameter, ...], FailFast()] = Field(min_length=1, max_length=1 << 16, strict=False)

    _written: bytes | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _complete(self) -> Contract:
        for section, spec in (("model", self.model), ("data", self.data)):
            for key in spec.LOCAL:
                if getattr(spec, key):
                    raise ValueError(f"{section}.{key} is a path, and a contract has no paths")
        self.model.check_complete()
        self.data.check_complete(self.model)
        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) != len(names):
            raise ValueError("parameters must have different names")
        if not self.requires:
            object.__setattr__(self, "requires", newest([FORMAT_SINCE, *_versions(self)]))  # the model is frozen
        return self

    @property
    def written(self) -> bytes:
        """The bytes whose hash names this contract: the bytes it was read from, or its canonical JSON if it is new."""
        if self._written is None:
            if self.version != FORMAT:
                raise ValueError(f"contracts of version {self.version} can be read, but no longer written")
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

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Contract:
        """Copy the contract. With an `update`, the copy is a new contract: validated, in the current format."""
        if not update:
            return super().model_copy(deep=deep)
        kept = {name: getattr(self, name) for name in type(self).model_fields if name not in ("version", "requires")}
        return type(self).model_validate(kept | dict(update))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contract) and self.written == other.written

    def __hash__(self) -> int:
        return hash(self.written)


def _versions(section: Section) -> Iterator[str]:
    """For each key and kind in a section, the first thinwire version that knows it."""
    for name, field in type(section).model_fields.items():
        if isinstance(field.json_schema_extra, dict) and "since" in field.json_schema_extra:
            yield str(field.json_schema_extra["since"])
        if isinstance(value := getattr(section, name), Section):
            yield from _versions(value)
    if isinstance(section, RunSpec):
        for union in UNIONS:
            kind = union.kind_of(getattr(section, union.section))
            if kind is not None:
                yield kind.since
