"""Specs of the data kinds; each kind is one file of this package. `thinwire_proto.data` reads the data."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from thinwire_proto.contract.models import ModelSpec
from thinwire_proto.contract.unions import KindSpec, TaggedUnion


class DataSpec(KindSpec):
    """The training data and the order of its samples."""

    GIVES: ClassVar[str] = ""
    """The kind of its samples, as in `ModelSpec.TAKES`."""

    seed: int = Field(1, ge=0, lt=1 << 63)
    """seed of the order of samples"""

    def check(self, model: ModelSpec) -> None:
        """Raise ValueError if the model cannot be trained on this data."""

    def check_complete(self, model: ModelSpec) -> None:
        """Raise ValueError if a key is missing that is optional in a run file but required in a contract."""


DATA: TaggedUnion[DataSpec] = TaggedUnion("data", DataSpec, default="corpus", home=__name__)
