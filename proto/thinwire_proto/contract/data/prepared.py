"""The base of the specs of prepared data: a manifest, and shards that nodes fetch as they need them."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field, field_validator

from thinwire_proto.blobs import HASH_PATTERN
from thinwire_proto.contract.data import DataSpec
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


class PreparedSpec(DataSpec):
    """Prepared data. A node fetches the manifest from the coordinator, and only the shards that its leases need."""

    LOCAL: ClassVar[tuple[str, ...]] = ("folder",)

    folder: str = Field("", description="the folder that `thinwire-coordinator prepare` wrote; only in a run file")
    urls: tuple[str, ...] = Field(
        (),
        max_length=16,
        strict=False,
        description="addresses of copies of that folder's `blobs`: https://…, s3://…, gs://…; nodes fetch shards from "
        "there, and from the coordinator only if that fails",
    )
    manifest_hash: str = Field("", pattern=f"^({HASH_PATTERN[1:-1]})?$", description="SHA-256 of the manifest")
    manifest_bytes: int = Field(0, ge=0, le=1 << 32, description="size of the manifest")

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return check_addresses(urls)

    def check_complete(self, model: ModelSpec) -> None:
        if not self.manifest_hash:
            raise ValueError("data.manifest_hash must name the manifest")
