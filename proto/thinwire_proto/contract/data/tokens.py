"""The spec of token shards, which `thinwire-coordinator prepare` makes. `thinwire_proto.data.tokens` reads them."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from thinwire_proto.blobs import HASH_PATTERN
from thinwire_proto.contract.data import DATA, DataSpec
from thinwire_proto.contract.models import ModelSpec

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


@DATA.register(since="0.3.0")
class TokensSpec(DataSpec):
    """Token shards, which `thinwire-coordinator prepare` makes. A node fetches the manifest from the coordinator, and
    only the shards that its leases need."""

    DERIVED: ClassVar[tuple[str, ...]] = ("manifest_hash", "manifest_bytes", "vocabulary")
    LOCAL: ClassVar[tuple[str, ...]] = ("folder",)

    kind: Literal["tokens"] = "tokens"
    folder: str = Field("", description="the folder that `thinwire-coordinator prepare` wrote; only in a run file")
    urls: tuple[str, ...] = Field(
        (),
        max_length=16,
        strict=False,
        description="addresses of copies of that folder's `blobs`: https://…, s3://…, gs://…; nodes fetch shards from "
        "there, and from the coordinator only if that fails",
    )
    weights: dict[str, float] = Field(
        default_factory=dict,
        description="how often each source of the manifest is drawn, by its name; without it, by its size",
    )
    manifest_hash: str = Field("", pattern=f"^({HASH_PATTERN[1:-1]})?$", description="SHA-256 of the manifest")
    manifest_bytes: int = Field(0, ge=0, le=1 << 32, description="size of the manifest")
    vocabulary: int = Field(0, ge=0, le=1 << 31, description="number of different tokens")

    @field_validator("weights")
    @classmethod
    def _positive(cls, weights: dict[str, float]) -> dict[str, float]:
        for name, weight in weights.items():
            if not weight > 0:
                raise ValueError(f"{name}: the weight of a source must be above 0; it is {weight}")
        return weights

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return check_addresses(urls)

    def check_complete(self, model: ModelSpec) -> None:
        if not self.manifest_hash:
            raise ValueError("data.manifest_hash must name the manifest")
        if model.vocabulary < self.vocabulary:
            raise ValueError(
                f"model.vocabulary must be at least {self.vocabulary}, the size of the tokenizer; "
                f"it is {model.vocabulary}"
            )
