"""Kinds of training data, each a file of this package. `thinwire_proto.data` reads them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from thinwire_proto.contract.models import ModelSpec
from thinwire_proto.contract.sections import since
from thinwire_proto.contract.unions import KindSpec, TaggedUnion

Order = Literal["feistel", "argsort"]


class DataSpec(KindSpec):
    """What is trained on, and in which order."""

    DERIVED: ClassVar[tuple[str, ...]] = ()
    """Keys that the coordinator computes. A run file must not have them."""

    seed: int = Field(1, ge=0, lt=1 << 63, description="of the order of samples")
    order: Order = Field(
        "feistel",
        description="of samples in a pass; see thinwire_proto.data.order. argsort: that of contracts of version 1",
        json_schema_extra=since("0.2.0"),
    )

    def check(self, model: ModelSpec) -> None:
        """Raise ValueError if the model cannot be trained on this data."""

    def check_complete(self, model: ModelSpec) -> None:
        """Raise ValueError if something is missing that a contract must have and a run file need not have."""


DATA: TaggedUnion[DataSpec] = TaggedUnion("data", DataSpec, default="corpus", home=__name__)
