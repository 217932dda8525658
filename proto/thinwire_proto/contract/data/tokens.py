"""The spec of token shards, which `thinwire-coordinator prepare` makes. `thinwire_proto.data.tokens` reads them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from thinwire_proto.contract.data import DATA
from thinwire_proto.contract.data.prepared import PreparedSpec, Shard, SourceName
from thinwire_proto.contract.models import ModelSpec
from thinwire_proto.contract.sections import AMENDABLE

WEIGHTS, HELD_OUT = "data.weights", "data.held_out"
"""The keys that may change within a run, dotted."""
ADDED_SETS_MAX = 8
"""Held-out sets that are added to a run."""
ADDED_SET_BYTES_MAX = 4 << 20
"""Bytes of one, which a standby gets together with the row that adds it."""

WEIGHTS_RATIO_MAX = 1_000_000_000


@DATA.register
class TokensSpec(PreparedSpec):
    """Token shards, which `thinwire-coordinator prepare` makes. A node fetches the manifest from the coordinator, and
    only the shards that its leases need."""

    DERIVED: ClassVar[tuple[str, ...]] = ("manifest_hash", "manifest_bytes", "vocabulary", "held_out")
    GIVES: ClassVar[str] = "tokens"

    kind: Literal["tokens"] = "tokens"
    weights: dict[str, float] = Field(default_factory=dict, json_schema_extra=AMENDABLE)
    """how often each source of the manifest is drawn, by its name; without it, by its size. A source that it leaves out
    is not trained on, and is still measured"""
    vocabulary: int = Field(0, ge=0, le=1 << 31)
    """number of different tokens"""
    held_out: dict[SourceName, Shard] = Field(
        default_factory=dict, max_length=ADDED_SETS_MAX, json_schema_extra=AMENDABLE
    )
    """held-out sets beside those of the manifest, which an amendment has added"""

    @field_validator("held_out")
    @classmethod
    def _small(cls, held_out: dict[str, Shard]) -> dict[str, Shard]:
        for name, shard in held_out.items():
            if shard.size > ADDED_SET_BYTES_MAX:
                raise ValueError(
                    f"{name}: a held-out set that is added has at most {ADDED_SET_BYTES_MAX:,} bytes of tokens; this "
                    f"has {shard.size:,}; give less text"
                )
        return held_out

    @field_validator("weights")
    @classmethod
    def _positive(cls, weights: dict[str, float]) -> dict[str, float]:
        for name, weight in weights.items():
            if not weight > 0:
                raise ValueError(
                    f"{name}: the weight of a source must be above 0; it is {weight}. To train on none of a source, "
                    "leave it out of data.weights: its held-out documents are still measured"
                )
        if weights and max(weights.values()) > WEIGHTS_RATIO_MAX * min(weights.values()):
            raise ValueError(f"the largest weight must be at most {WEIGHTS_RATIO_MAX:,} times the smallest")
        return weights

    def check_complete(self, model: ModelSpec) -> None:
        super().check_complete(model)
        if model.vocabulary < self.vocabulary:
            raise ValueError(
                f"model.vocabulary must be at least {self.vocabulary}, the size of the tokenizer; "
                f"it is {model.vocabulary}"
            )
