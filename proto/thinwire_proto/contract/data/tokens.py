"""The spec of token shards, which `thinwire-coordinator prepare` makes. `thinwire_proto.data.tokens` reads them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from thinwire_proto.contract.data import DATA
from thinwire_proto.contract.data.prepared import PreparedSpec
from thinwire_proto.contract.models import ModelSpec
from thinwire_proto.contract.sections import AMENDABLE


@DATA.register
class TokensSpec(PreparedSpec):
    """Token shards, which `thinwire-coordinator prepare` makes. A node fetches the manifest from the coordinator, and
    only the shards that its leases need."""

    DERIVED: ClassVar[tuple[str, ...]] = ("manifest_hash", "manifest_bytes", "vocabulary")

    kind: Literal["tokens"] = "tokens"
    weights: dict[str, float] = Field(
        default_factory=dict,
        description="how often each source of the manifest is drawn, by its name; without it, by its size. A source "
        "that it leaves out is not trained on, and is still measured",
        json_schema_extra=AMENDABLE,
    )
    vocabulary: int = Field(0, ge=0, le=1 << 31, description="number of different tokens")

    @field_validator("weights")
    @classmethod
    def _positive(cls, weights: dict[str, float]) -> dict[str, float]:
        for name, weight in weights.items():
            if not weight > 0:
                raise ValueError(
                    f"{name}: the weight of a source must be above 0; it is {weight}. To train on none of a source, "
                    "leave it out of data.weights: its held-out documents are still measured"
                )
        return weights

    def check_complete(self, model: ModelSpec) -> None:
        super().check_complete(model)
        if model.vocabulary < self.vocabulary:
            raise ValueError(
                f"model.vocabulary must be at least {self.vocabulary}, the size of the tokenizer; "
                f"it is {model.vocabulary}"
            )
