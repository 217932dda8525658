"""Data in shards, which nodes fetch as they need them: samples are records of files."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from thinwire_proto.blobs import Blob, BlobMissing, Blobs
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, AnyManifest, read_manifest
from thinwire_proto.data.shard_order import Mixtures, ShardOrder
from thinwire_proto.errors import ConfigError, PayloadError
from thinwire_proto.task import Batch, DataSource

Place = tuple[Shard, int]
"""A shard, and the number of a sample in it."""


class HeldOut:
    """The samples of one held-out set: those of its shards, one shard after another. samples: of each shard."""

    def __init__(self, shards: Sequence[Shard], samples: Iterable[int]) -> None:
        self._shards = shards
        self._ends = list(accumulate(samples))

    @property
    def samples(self) -> int:
        return self._ends[-1]

    def place(self, sample: int) -> Place:
        number = bisect_right(self._ends, sample)
        return self._shards[number], sample - (self._ends[number - 1] if number else 0)


class ShardedData(DataSource):
    """The base of `DataSource`s over shards. train: the shards of each source that the order has, in its order."""

    def __init__(
        self,
        blobs: Blobs,
        train: Sequence[Sequence[Shard]],
        order: ShardOrder | Mixtures,
        held_out: Mapping[str, HeldOut],
    ) -> None:
        self._blobs = blobs
        self._train = train
        self._order = order
        self._held_out = held_out

    def batch(self, positions: Sequence[int]) -> Batch:
        places = (self._order.place(position) for position in positions)
        return self._read([(self._train[place.source][place.shard], place.sample) for place in places])

    def needs(self, positions: Iterable[range]) -> tuple[Blob, ...]:
        found: dict[Blob, None] = {}
        for one in positions:
            for _, source, shard in sorted(self._order.shards(one)):
                found[self._train[source][shard].blob] = None
        return tuple(found)

    def block(self, position: int) -> range:
        return self._order.block(position)

    def held_out(self, name: str, samples: Sequence[int]) -> Batch:
        return self._read([self._held_out[name].place(sample) for sample in samples])

    def held_out_needs(self, name: str, samples: Sequence[int]) -> tuple[Blob, ...]:
        return tuple(dict.fromkeys(self._held_out[name].place(sample)[0].blob for sample in samples))

    @abstractmethod
    def _read(self, places: Sequence[Place]) -> Batch:
        """Read samples. Raises BlobMissing."""

    def _records(self, places: Sequence[Place], step: int, size: int) -> Iterator[tuple[int, bytes]]:
        """The bytes of each sample, with its number in `places`. Opens each shard once. Raises BlobMissing.

        step: bytes from one sample to the next. size: of a sample. The files are read and not mapped into memory: if
        one is truncated meanwhile, a read falls short, where a mapping would kill the process."""
        by_shard: dict[Blob, list[tuple[int, int]]] = {}
        for row, (shard, sample) in enumerate(places):
            by_shard.setdefault(shard.blob, []).append((row, sample))
        for blob, rows in by_shard.items():
            try:
                with self._blobs.path(blob).open("rb", buffering=0) as file:
                    for row, sample in rows:
                        file.seek(sample * step)
                        record = file.read(size)
                        if len(record) < size:  # it was truncated a moment ago
                            raise BlobMissing(blob)
                        yield row, record
            except FileNotFoundError:
                raise BlobMissing(blob) from None


def read_folder(kind: type[AnyManifest], folder: str, prepare: str) -> tuple[bytes, AnyManifest]:
    """The manifest of a folder of prepared data, as bytes and read. prepare: how to make one. Raises ConfigError."""
    if not folder:
        raise ConfigError(f"data.folder must name a folder of prepared data; {prepare}")
    path = Path(folder) / MANIFEST_FILE
    try:
        file = path.read_bytes()
        return file, read_manifest(kind, file)
    except FileNotFoundError:
        raise ConfigError(f"data.folder: {folder} has no {MANIFEST_FILE}; {prepare}") from None
    except OSError as error:
        raise ConfigError(f"data.folder: {path}: {error.strerror or error}") from None
    except PayloadError as error:
        raise ConfigError(f"data.folder: {path}: {error}; {prepare}") from None


def paths_of(blobs: Iterable[Blob], folder: str, go_on: Callable[[], None]) -> dict[Blob, Path]:
    """Where blobs are in a folder of prepared data. Raises ConfigError if one is not there whole."""
    found = {}
    for blob in blobs:
        go_on()
        path = Path(folder) / BLOBS_FOLDER / blob.hash
        size = path.stat().st_size if path.is_file() else None
        if size != blob.size:
            what = "is missing" if size is None else f"has {size:,} bytes, and must have {blob.size:,}"
            raise ConfigError(f"data.folder: {path} {what}; run `thinwire-coordinator prepare` again")
        found[blob] = path
    return found
