"""The base class of all sections of the contract, and bounds that other packages use too."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import from_json

from thinwire_proto.errors import ContractError

CONTRACT_BYTES_MAX = 1 << 20
WEIGHT_SUM_MAX = 32_767
"""Bound on the sum of weights in a round, so that a merged vote is an int16."""
TILE_EDGE = 64
TENSOR_ELEMENTS_MAX = 1 << 31
"""The fingerprint keeps a parameter's position in 31 bits."""

Magnitude = Literal["sign", "clipped", "tile"]


class Section(BaseModel):
    """A table of the contract. It is frozen and strict: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


ADDRESS = r"(https?|s3|gs)://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~/%+=,-]*)?"
"""The form of an address that a node may read. Nothing in it can name a file of the node's machine."""


def check_addresses(urls: tuple[str, ...]) -> tuple[str, ...]:
    """Raise ValueError if a node may not read one of these addresses."""
    for url in urls:
        if not re.fullmatch(ADDRESS, url):
            raise ValueError(
                f"{url!r} must begin with https://, http://, s3:// or gs://, and have no user, query or fragment"
            )
    return urls


Addresses = Annotated[tuple[str, ...], Field(max_length=16, strict=False), AfterValidator(check_addresses)]
"""Addresses that a node may read. None by default: `urls: Addresses = ()`."""


AMENDABLE: dict[str, Any] = {"amendable": True}
"""Marks a field that may change within a run: `Field(8, json_schema_extra=AMENDABLE)`. See `exact.amendments`."""


def unit(name: str) -> dict[str, Any]:
    """Mark a field with the unit of its values, for docs/run-file.md: `Field(8, json_schema_extra=unit("samples"))`."""
    return {"unit": name}


class Parameter(Section):
    """Name and shape of a trained tensor. Tied tensors are listed once; tensors without gradient are not listed."""

    name: str = Field(min_length=1, max_length=256)
    shape: tuple[int, ...] = Field(max_length=8, strict=False)  # a list in JSON

    @model_validator(mode="after")
    def _bounded(self) -> Parameter:
        elements = 1
        for size in self.shape:
            elements *= size
            if size < 1 or elements >= TENSOR_ELEMENTS_MAX:
                raise ValueError(f"{self.name}: shape {self.shape} must have 1 to 2³¹ − 1 elements")
        return self


def read_canonical(data: bytes, what: str, bytes_max: int) -> dict[str, Any]:
    """Read an object in canonical JSON. what: its name in errors. Raises ContractError."""
    if len(data) > bytes_max:
        raise ContractError(f"{what} has at most {bytes_max} bytes; this has {len(data)}")
    try:
        found = from_json(data, allow_inf_nan=False)
        written = canonical_json(found)
    except ValueError as error:
        raise ContractError(f"this is not {what}: {error}") from None
    if not isinstance(found, dict):
        raise ContractError(f"this is not {what}: it is not a JSON object")
    if written != data:
        raise ContractError(f"this is not {what}: its JSON is not canonical")
    return found


def canonical_json(value: Any) -> bytes:
    """Serialize to JSON in ASCII, with sorted keys and without white space."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
