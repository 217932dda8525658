"""What all sections of the contract share, and the bounds that other packages need too."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

CONTRACT_BYTES_MAX = 1 << 20
WEIGHT_SUM_MAX = 32_767
"""Bound on the sum of weights in a round, so that a merged vote is an int16."""
TILE_EDGE = 64
TENSOR_ELEMENTS_MAX = 1 << 31
"""The fingerprint keeps a parameter's position in 31 bits."""

Magnitude = Literal["sign", "clipped", "tile"]


class Section(BaseModel):
    """A table of the contract. Frozen, and strict: a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def since(version: str) -> dict[str, Any]:
    """Marks a field with the first thinwire that knows it: `Field(0, json_schema_extra=since("0.3.0"))`.

    Every field that is added to a section needs it, and a default that means what contracts without the field meant.
    A contract's `requires` follows from these marks.
    """
    return {"since": version}


class Parameter(Section):
    """One trained tensor; tied ones are listed once, those without gradient not at all."""

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


def canonical_json(value: Any) -> bytes:
    """JSON in ASCII, with sorted keys and no white space."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
