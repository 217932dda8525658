"""The spec of images with classes, which `prepare --images` makes. `thinwire_proto.data.images` reads them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from thinwire_proto.blobs import HASH_PATTERN
from thinwire_proto.contract.data import DATA, DataSpec
from thinwire_proto.contract.data.tokens import check_addresses
from thinwire_proto.contract.models import ModelSpec
from thinwire_proto.contract.sections import unit


@DATA.register(since="0.3.0")
class ImagesSpec(DataSpec):
    """Square images with classes, which `thinwire-coordinator prepare --images` makes. A node fetches the manifest from
    the coordinator, and only the shards that its leases need."""

    DERIVED: ClassVar[tuple[str, ...]] = ("manifest_hash", "manifest_bytes", "classes", "image_size")
    LOCAL: ClassVar[tuple[str, ...]] = ("folder",)

    kind: Literal["images"] = "images"
    folder: str = Field("", description="the folder that `prepare --images` wrote; only in a run file")
    urls: tuple[str, ...] = Field(
        (),
        max_length=16,
        strict=False,
        description="addresses of copies of that folder's `blobs`: https://…, s3://…, gs://…; nodes fetch shards from "
        "there, and from the coordinator only if that fails",
    )
    manifest_hash: str = Field("", pattern=f"^({HASH_PATTERN[1:-1]})?$", description="SHA-256 of the manifest")
    manifest_bytes: int = Field(0, ge=0, le=1 << 32, description="size of the manifest")
    classes: int = Field(0, ge=0, le=1 << 20, description="number of classes")
    image_size: int = Field(0, ge=0, le=4096, description="width and height of an image", json_schema_extra=unit("px"))

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return check_addresses(urls)

    def check_complete(self, model: ModelSpec) -> None:
        if not self.manifest_hash:
            raise ValueError("data.manifest_hash must name the manifest")
        for key in ("classes", "image_size"):
            wanted = getattr(model, key, None)
            if wanted is not None and wanted != getattr(self, key):
                raise ValueError(f"model.{key} must be {getattr(self, key)}, as in the data; it is {wanted}")
        if getattr(model, "channels", CHANNELS) != CHANNELS:
            raise ValueError(f"model.channels must be {CHANNELS}; the images have colours")


CHANNELS = 3
"""Red, green and blue."""
