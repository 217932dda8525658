"""The spec of images with classes, which `prepare --images` makes. `thinwire_proto.data.images` reads them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from thinwire_proto.contract.data import DATA
from thinwire_proto.contract.data.prepared import PreparedSpec
from thinwire_proto.contract.models import ModelSpec
from thinwire_proto.contract.sections import unit


@DATA.register
class ImagesSpec(PreparedSpec):
    """Square images with classes, which `thinwire-coordinator prepare --images` makes. A node fetches the manifest from
    the coordinator, and only the shards that its leases need."""

    DERIVED: ClassVar[tuple[str, ...]] = ("manifest_hash", "manifest_bytes", "classes", "image_size")
    GIVES: ClassVar[str] = "images"

    kind: Literal["images"] = "images"
    classes: int = Field(0, ge=0, le=1 << 20)
    """number of classes"""
    image_size: int = Field(0, ge=0, le=4096, json_schema_extra=unit("px"))
    """width and height of an image"""

    def check_complete(self, model: ModelSpec) -> None:
        super().check_complete(model)
        for key in ("classes", "image_size"):
            wanted = getattr(model, key, None)
            if wanted is not None and wanted != getattr(self, key):
                raise ValueError(f"model.{key} must be {getattr(self, key)}, as in the data; it is {wanted}")


CHANNELS = 3
"""Red, green and blue."""
