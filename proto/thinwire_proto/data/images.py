"""The data kind `images`: samples are square images with the number of their class."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from thinwire_proto.blobs import Blob, Blobs
from thinwire_proto.contract import Contract, DataSpec, RunSpec
from thinwire_proto.contract.data.images import CHANNELS, ImagesSpec
from thinwire_proto.data.image_manifest import LABEL_BYTES, ImageManifest
from thinwire_proto.data.manifest import read_manifest
from thinwire_proto.data.shard_order import ShardOrder
from thinwire_proto.data.sharded import HeldOut, Place, ShardedData, paths_of, read_folder
from thinwire_proto.errors import ConfigError, ContractError, PayloadError
from thinwire_proto.task import DATA_KINDS, Batch, DataKind, HeldOutSet, Made

HELD_OUT = "images"
"""The name of the only held-out set."""
PREPARE = "make it with `thinwire-coordinator prepare --images`"
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
"""Of red, green and blue in ImageNet; most models of timm expect images that are normalized by them."""


class Images(ShardedData):
    """A `DataSource` over shards of images. A batch is the images, float32 [samples, 3, size, size], normalized by
    MEAN and DEVIATION, and their classes, int64 [samples]."""

    def __init__(self, manifest: ImageManifest, spec: ImagesSpec, blobs: Blobs) -> None:
        order = ShardOrder([[shard.tokens for shard in manifest.train]], spec.seed)
        held_out = HeldOut(manifest.held_out, (shard.tokens for shard in manifest.held_out))
        super().__init__(blobs, [manifest.train], order, {HELD_OUT: held_out})
        self._manifest = manifest

    def blobs(self) -> Iterable[Blob]:
        return (shard.blob for shard in (*self._manifest.train, *self._manifest.held_out))

    def check(self, blob: Blob) -> None:
        """Check that every image of a shard has a class that the manifest names."""
        path = self._blobs.path(blob)
        with path.open("rb") as file:
            while record := file.read(self._manifest.record_bytes):
                if (label := int.from_bytes(record[:LABEL_BYTES], "little")) >= len(self._manifest.classes):
                    raise PayloadError(
                        f"shard {blob.hash[:16]}… has the class {label}, but there are {len(self._manifest.classes)}"
                    )

    def held_out_sets(self) -> tuple[HeldOutSet, ...]:
        return (HeldOutSet(HELD_OUT, self._held_out[HELD_OUT].samples),)

    def describe(self) -> str:
        manifest = self._manifest
        images = sum(shard.tokens for shard in manifest.train)
        return f"{images:,} images of {len(manifest.classes)} classes in {len(manifest.train)} shards"

    def _read(self, places: Sequence[Place]) -> Batch:
        size, record_bytes = self._manifest.image_size, self._manifest.record_bytes
        pixels = np.empty((len(places), size, size, CHANNELS), np.uint8)
        labels = np.empty(len(places), np.int64)
        for row, record in self._records(places, record_bytes, record_bytes):
            labels[row] = int.from_bytes(record[:LABEL_BYTES], "little")
            pixels[row] = np.frombuffer(record, np.uint8, offset=LABEL_BYTES).reshape(pixels.shape[1:])
        normal = (pixels.astype(np.float32) / np.float32(255) - MEAN) / DEVIATION
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(0, 3, 1, 2))), torch.from_numpy(labels)


class ImagesKind(DataKind):
    """A `DataKind`. A new run uses a folder that `thinwire-coordinator prepare --images` wrote."""

    def make(self, run: RunSpec, go_on: Callable[[], None]) -> Made:
        spec = images_of(run.data)
        file, manifest = read_folder(ImageManifest, spec.folder, PREPARE)
        name = hashlib.sha256(file).hexdigest()
        if spec.manifest_hash not in ("", name):
            raise ConfigError(f"data.manifest_hash: {spec.folder} has other data; remove the key to use them")
        derived = {
            "manifest_hash": name,
            "manifest_bytes": len(file),
            "classes": len(manifest.classes),
            "image_size": manifest.image_size,
        }
        shards = (*manifest.train, *manifest.held_out)
        blobs = paths_of((shard.blob for shard in shards), spec.folder, go_on)
        return Made(spec.model_copy(update={**derived, "folder": ""}), file, blobs)

    def file_bytes_max(self, spec: ImagesSpec) -> int:
        return spec.manifest_bytes

    def open(self, file: bytes, contract: Contract, blobs: Blobs) -> Images:
        spec = images_of(contract.data)
        manifest = read_manifest(ImageManifest, file, spec.manifest_hash)
        if (len(manifest.classes), manifest.image_size) != (spec.classes, spec.image_size):
            raise PayloadError("the manifest has the right hash, but its classes or its size differ from the contract")
        return Images(manifest, spec, blobs)


def images_of(data: DataSpec) -> ImagesSpec:
    """The data section as a spec of images. Raises ContractError if it is of another kind."""
    if not isinstance(data, ImagesSpec):
        raise ContractError(f"data.kind must be images here; it is {data.kind}")
    return data


DATA_KINDS.register("images")(ImagesKind())
