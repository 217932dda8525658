"""The manifest of prepared images. Its SHA-256 is in the contract.

`thinwire-coordinator prepare --images` writes a folder with `manifest.json` (this, in canonical JSON) and `blobs/HASH`.
A shard is a sequence of records: the number of the class as uint32, little-endian, and the pixels as uint8
[image_size, image_size, 3].
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from thinwire_proto.contract.data.images import CHANNELS
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.contract.sections import Section, canonical_json

LABEL_BYTES = 4


class ImageManifest(Section):
    """The manifest. classes: their names, by number. train, held_out: shards, whose `tokens` count images."""

    version: Literal[1] = 1
    kind: Literal["images"] = "images"
    image_size: int = Field(ge=1, le=4096)
    classes: tuple[str, ...] = Field(min_length=2, max_length=1 << 20, strict=False)
    train: tuple[Shard, ...] = Field(min_length=1, strict=False)
    held_out: tuple[Shard, ...] = Field(min_length=1, strict=False)

    @property
    def record_bytes(self) -> int:
        return LABEL_BYTES + self.image_size**2 * CHANNELS

    @model_validator(mode="after")
    def _sizes(self) -> ImageManifest:
        for shard in (*self.train, *self.held_out):
            if shard.size != shard.tokens * self.record_bytes:
                raise ValueError(
                    f"shard {shard.hash[:16]}… has {shard.size} bytes, which are not {shard.tokens} images"
                )
        return self

    def written(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))
