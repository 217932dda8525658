"""The data kind `images`: samples are square images with the number of their class."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from thinwire_proto.blobs import Blob, BlobMissing, Blobs
from thinwire_proto.contract import Contract, DataSpec, RunSpec
from thinwire_proto.contract.data.images import CHANNELS, ImagesSpec
from thinwire_proto.data.image_manifest import LABEL_BYTES, ImageManifest
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Shard, read_manifest
from thinwire_proto.data.shard_order import ShardOrder
from thinwire_proto.errors import ConfigError, ContractError, PayloadError
from thinwire_proto.task import DATA_KINDS, Batch, DataKind, DataSource, HeldOutSet, Made

HELD_OUT = "images"
"""The name of the only held-out set."""
PREPARE = "make it with `thinwire-coordinator prepare --images`"
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
"""Of red, green and blue in ImageNet; most models of timm expect images that are normalized by them."""


class Images(DataSource):
    """A `DataSource` over shards of images. A batch is the images, float32 [samples, 3, size, size], normalized by
    MEAN and DEVIATION, and their classes, int64 [samples]."""

    def __init__(self, manifest: ImageManifest, spec: ImagesSpec, blobs: Blobs) -> None:
        self._manifest = manifest
        self._blobs = blobs
        self._order = ShardOrder([[shard.tokens for shard in manifest.train]], spec.seed)
        self._held_out_ends = list(accumulate(shard.tokens for shard in manifest.held_out))

    def batch(self, positions: Sequence[int]) -> Batch:
        places = (self._order.place(position) for position in positions)
        return self._read([(self._manifest.train[place.shard], place.sample) for place in places])

    def needs(self, positions: Iterable[range]) -> tuple[Blob, ...]:
        found: dict[Blob, None] = {}
        for one in positions:
            for _, _, shard in sorted(self._order.shards(one)):
                found[self._manifest.train[shard].blob] = None
        return tuple(found)

    def blobs(self) -> Iterable[Blob]:
        return (shard.blob for shard in (*self._manifest.train, *self._manifest.held_out))

    def block(self, position: int) -> range:
        return self._order.block(position)

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
        return (HeldOutSet(HELD_OUT, self._held_out_ends[-1]),)

    def held_out(self, name: str, samples: Sequence[int]) -> Batch:
        return self._read([self._held_out_place(sample) for sample in samples])

    def held_out_needs(self, name: str, samples: Sequence[int]) -> tuple[Blob, ...]:
        return tuple(dict.fromkeys(self._held_out_place(sample)[0].blob for sample in samples))

    def describe(self) -> str:
        manifest = self._manifest
        images = sum(shard.tokens for shard in manifest.train)
        return f"{images:,} images of {len(manifest.classes)} classes in {len(manifest.train)} shards"

    def _held_out_place(self, sample: int) -> tuple[Shard, int]:
        number = bisect_right(self._held_out_ends, sample)
        return self._manifest.held_out[number], sample - (self._held_out_ends[number - 1] if number else 0)

    def _read(self, places: Sequence[tuple[Shard, int]]) -> Batch:
        """Read images by shard and number. The files are read and not mapped: see `thinwire_proto.data.tokens`."""
        size, record_bytes = self._manifest.image_size, self._manifest.record_bytes
        pixels = np.empty((len(places), size, size, CHANNELS), np.uint8)
        labels = np.empty(len(places), np.int64)
        by_shard: dict[Blob, list[tuple[int, int]]] = {}
        for row, (shard, sample) in enumerate(places):
            by_shard.setdefault(shard.blob, []).append((row, sample))
        for blob, rows in by_shard.items():
            try:
                with self._blobs.path(blob).open("rb", buffering=0) as file:
                    for row, sample in rows:
                        file.seek(sample * record_bytes)
                        record = file.read(record_bytes)
                        labels[row] = int.from_bytes(record[:LABEL_BYTES], "little")
                        pixels[row] = np.frombuffer(record, np.uint8, offset=LABEL_BYTES).reshape(pixels.shape[1:])
            except (FileNotFoundError, ValueError):  # it was deleted or truncated a moment ago
                raise BlobMissing(blob) from None
        normal = (pixels.astype(np.float32) / np.float32(255) - MEAN) / DEVIATION
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(0, 3, 1, 2))), torch.from_numpy(labels)


class ImagesKind(DataKind):
    """A `DataKind`. A new run uses a folder that `thinwire-coordinator prepare --images` wrote."""

    def make(self, run: RunSpec, go_on: Callable[[], None]) -> Made:
        spec = images_of(run.data)
        if not spec.folder:
            raise ConfigError(f"data.folder must name a folder of prepared images; {PREPARE}")
        folder = Path(spec.folder)
        try:
            file = (folder / MANIFEST_FILE).read_bytes()
            manifest = read_manifest(ImageManifest, file)
        except FileNotFoundError:
            raise ConfigError(f"data.folder: {folder} has no {MANIFEST_FILE}; {PREPARE}") from None
        except OSError as error:
            raise ConfigError(f"data.folder: {folder / MANIFEST_FILE}: {error.strerror or error}") from None
        except PayloadError as error:
            raise ConfigError(f"data.folder: {folder / MANIFEST_FILE}: {error}; {PREPARE}") from None
        name = hashlib.sha256(file).hexdigest()
        if spec.manifest_hash not in ("", name):
            raise ConfigError(f"data.manifest_hash: {folder} has other data; remove the key to use them")
        derived = {
            "manifest_hash": name,
            "manifest_bytes": len(file),
            "classes": len(manifest.classes),
            "image_size": manifest.image_size,
        }
        blobs = _blobs_of(manifest, folder, go_on)
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


def _blobs_of(manifest: ImageManifest, folder: Path, go_on: Callable[[], None]) -> dict[Blob, Path]:
    """All shards of a manifest, and where they are in its folder. Raises ConfigError if one is not there whole."""
    found = {}
    for shard in (*manifest.train, *manifest.held_out):
        go_on()
        path = folder / BLOBS_FOLDER / shard.hash
        if not path.is_file() or path.stat().st_size != shard.size:
            raise ConfigError(f"data.folder: {path} is missing or truncated; run `prepare --images` again")
        found[shard.blob] = path
    return found


DATA_KINDS.register("images")(ImagesKind())
