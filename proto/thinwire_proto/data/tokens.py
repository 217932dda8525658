"""The data kind `tokens`: samples are windows of token shards, which nodes fetch as they need them.

A sample of a shard consists of the tokens i·context … (i + 1)·context, both ends included. No sample reaches across the
end of a shard; a document may.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from thinwire_proto.blobs import Blob, BlobMissing, Blobs
from thinwire_proto.contract import Contract, DataSpec, RunSpec
from thinwire_proto.contract.data.tokens import TokensSpec
from thinwire_proto.data.byte_tokenizer import ByteTokenizer
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Manifest, Shard, Source, read_manifest
from thinwire_proto.data.shard_order import ShardOrder
from thinwire_proto.errors import ConfigError, ContractError, PayloadError
from thinwire_proto.task import DATA_KINDS, Batch, DataKind, DataSource, HeldOutSet, Made, Tokenizer

CHECKED_TOKENS = 1 << 22
"""Tokens that `check` reads at a time."""
PREPARE = "make it with `thinwire-coordinator prepare`"

Tokens = npt.NDArray[np.int64]


class TokenShards(DataSource):
    """A `DataSource` over token shards. A batch is one tensor of tokens, int64 [samples, context + 1]."""

    def __init__(self, manifest: Manifest, spec: TokensSpec, context: int, blobs: Blobs) -> None:
        self._manifest = manifest
        self._context = context
        self._blobs = blobs
        self._type = np.dtype(manifest.token).newbyteorder("<")
        self._checked: set[Blob] = set()
        self._drawn = drawn_sources(manifest, spec)
        self._train = [long_enough(source.train, context) for source in self._drawn]
        samples = [[windows_in(shard, context) for shard in shards] for shards in self._train]
        weights = [spec.weights[source.name] for source in self._drawn] if spec.weights else None
        self._order = ShardOrder(samples, spec.seed, weights)
        self._shards = {shard.blob: shard for source in manifest.sources for shard in (*source.train, *source.held_out)}
        self._held_out = {
            source.name: _HeldOut(shards, context)
            for source in manifest.sources
            if (shards := long_enough(source.held_out, context))
        }

    def batch(self, positions: Sequence[int]) -> Batch:
        places = (self._order.place(position) for position in positions)
        return self._read([(self._train[place.source][place.shard], place.sample) for place in places])

    def needs(self, positions: Iterable[range]) -> tuple[Blob, ...]:
        found: dict[Blob, None] = {}
        for one in positions:
            for _, source, shard in sorted(self._order.shards(one)):
                found[self._train[source][shard].blob] = None
        return tuple(found)

    def blobs(self) -> Iterable[Blob]:
        return self._manifest.blobs()

    def block(self, position: int) -> range:
        return self._order.block(position)

    def check(self, blob: Blob) -> None:
        """Check that a shard has the size of its tokens, and no token outside the vocabulary."""
        path, shard = self._blobs.path(blob), self._shards.get(blob)
        if shard is None or blob in self._checked:
            return
        if wrong := wrong_size(shard, self._type):
            raise PayloadError(f"shard {wrong}")
        with path.open("rb") as file:
            while len(part := np.fromfile(file, self._type, CHECKED_TOKENS)):
                if (most := int(part.max())) >= self._manifest.vocabulary:
                    raise PayloadError(
                        f"shard {blob.hash[:16]}… has the token {most}, but the vocabulary has "
                        f"{self._manifest.vocabulary} tokens"
                    )
        self._checked.add(blob)

    def held_out_sets(self) -> tuple[HeldOutSet, ...]:
        return tuple(HeldOutSet(name, found.samples, found.text_bytes) for name, found in self._held_out.items())

    def held_out(self, name: str, samples: Sequence[int]) -> Batch:
        found = self._held_out[name]
        return self._read([found.place(sample) for sample in samples])

    def held_out_needs(self, name: str, samples: Sequence[int]) -> tuple[Blob, ...]:
        found = self._held_out[name]
        return tuple(dict.fromkeys(found.place(sample)[0].blob for sample in samples))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the manifest. Raises BlobMissing if one of its files is not on this machine."""
        manifest = self._manifest
        if manifest.tokenizer is None:
            return ByteTokenizer()
        files = {name: self._blobs.path(file.blob).read_bytes() for name, file in manifest.files.items()}
        return JsonTokenizer(self._blobs.path(manifest.tokenizer.blob), manifest.end, files)

    def describe(self) -> str:
        shards = sum(len(source.train) for source in self._drawn)
        tokens = sum(shard.tokens for source in self._drawn for shard in source.train)
        names = ", ".join(source.name for source in self._drawn)
        return f"{tokens:,} tokens in {shards} shards of {names}"

    def _read(self, places: Sequence[tuple[Shard, int]]) -> Batch:
        """Read samples by shard and number, and open each shard once. The files are read and not mapped into memory:
        if one is truncated meanwhile, a read falls short, where a mapping would kill the process."""
        by_shard: dict[Blob, list[tuple[int, int]]] = {}
        for row, (shard, sample) in enumerate(places):
            by_shard.setdefault(shard.blob, []).append((row, sample))
        length, found = self._context + 1, np.empty((len(places), self._context + 1), np.int64)
        for blob, rows in by_shard.items():
            try:
                with self._blobs.path(blob).open("rb", buffering=0) as file:
                    for row, sample in rows:
                        file.seek(sample * self._context * self._type.itemsize)
                        data = file.read(length * self._type.itemsize)
                        found[row] = np.frombuffer(data, self._type)
            except (FileNotFoundError, ValueError):  # it was deleted or truncated a moment ago
                raise BlobMissing(blob) from None
        return (torch.from_numpy(found),)


class _HeldOut:
    """The samples of one held-out set: those of its shards, one shard after another."""

    def __init__(self, shards: Sequence[Shard], context: int) -> None:
        self._shards = shards
        self._starts: list[int] = []
        self.samples = 0
        self.text_bytes = 0
        for shard in shards:
            samples = windows_in(shard, context)
            self._starts.append(self.samples)
            self.samples += samples
            self.text_bytes += shard.text_bytes * samples * context // shard.tokens

    def place(self, sample: int) -> tuple[Shard, int]:
        slot = bisect_right(self._starts, sample) - 1
        return self._shards[slot], sample - self._starts[slot]


def windows_in(shard: Shard, context: int) -> int:
    """The number of samples in a shard; adjacent ones share a token."""
    return (shard.tokens - 1) // context


def wrong_size(shard: Shard, kind: np.dtype[Any]) -> str:
    """The problem if a shard's bytes cannot be its tokens; empty if there is none."""
    if shard.size == shard.tokens * kind.itemsize:
        return ""
    return f"{shard.hash[:16]}… has {shard.size:,} bytes, which are not {shard.tokens:,} tokens of {kind}"


def long_enough(shards: Iterable[Shard], context: int) -> list[Shard]:
    """The shards that have at least one sample."""
    return [shard for shard in shards if windows_in(shard, context)]


def drawn_sources(manifest: Manifest, spec: TokensSpec) -> list[Source]:
    """The sources that samples are drawn from. Those that `weights` leaves out are not drawn."""
    return [source for source in manifest.sources if not spec.weights or source.name in spec.weights]


class TokensKind(DataKind):
    """A `DataKind`. A new run uses a folder that `thinwire-coordinator prepare` wrote."""

    def make(self, run: RunSpec, go_on: Callable[[], None]) -> Made:
        spec = tokens_of(run.data)
        if not spec.folder:
            raise ConfigError(f"data.folder must name a folder of prepared data; {PREPARE}")
        folder = Path(spec.folder)
        file, manifest = _read_manifest_of(folder)
        _check_enough(manifest, spec, run.model.context)
        _check_tokenizer(manifest, folder)
        name = hashlib.sha256(file).hexdigest()
        if spec.manifest_hash not in ("", name):
            raise ConfigError(f"data.manifest_hash: {folder} has other data; remove the key to use them")
        derived = {"manifest_hash": name, "manifest_bytes": len(file), "vocabulary": manifest.vocabulary}
        blobs = _blobs_of(manifest, folder, go_on)
        return Made(spec.model_copy(update={**derived, "folder": ""}), file, blobs)

    def file_bytes_max(self, spec: TokensSpec) -> int:
        return spec.manifest_bytes

    def open(self, file: bytes, contract: Contract, blobs: Blobs) -> TokenShards:
        spec, context = tokens_of(contract.data), contract.model.context
        manifest = read_manifest(Manifest, file, spec.manifest_hash)
        if manifest.vocabulary != spec.vocabulary:
            raise PayloadError(
                f"the manifest has {manifest.vocabulary} tokens in its vocabulary; the contract says {spec.vocabulary}"
            )
        try:
            _check_enough(manifest, spec, context)
        except ConfigError as error:
            raise PayloadError(str(error)) from None
        return TokenShards(manifest, spec, context, blobs)


def tokens_of(data: DataSpec) -> TokensSpec:
    """The data section as a spec of token shards. Raises ContractError if it is of another kind."""
    if not isinstance(data, TokensSpec):
        raise ContractError(f"data.kind must be tokens here; it is {data.kind}")
    return data


def _read_manifest_of(folder: Path) -> tuple[bytes, Manifest]:
    path = folder / MANIFEST_FILE
    try:
        file = path.read_bytes()
        return file, read_manifest(Manifest, file)
    except FileNotFoundError:
        raise ConfigError(f"data.folder: {folder} has no {MANIFEST_FILE}; {PREPARE}") from None
    except OSError as error:
        raise ConfigError(f"data.folder: {path}: {error.strerror or error}") from None
    except PayloadError as error:
        raise ConfigError(f"data.folder: {path}: {error}; {PREPARE}") from None


def _check_enough(manifest: Manifest, spec: TokensSpec, context: int) -> None:
    """Raise ConfigError if a weight names no source, or there is too little text to train or to measure on."""
    names = [source.name for source in manifest.sources]
    for name in spec.weights:
        if name not in names:
            raise ConfigError(f"data.weights: there is no source {name!r} in the data; there are {', '.join(names)}")
    drawn = drawn_sources(manifest, spec)
    short = [source.name for source in drawn if not long_enough(source.train, context)]
    if len(short) == len(drawn) or (short and spec.weights):
        raise ConfigError(
            f"data: {', '.join(short)} has no shard of more than model.context = {context} tokens to train on; "
            "give a smaller model.context or more text"
        )
    if not any(long_enough(source.held_out, context) for source in manifest.sources):
        raise ConfigError(
            f"data: no held-out shard has more than model.context = {context} tokens, so the held-out loss cannot be "
            "measured; prepare the data with a larger --held-out, or give a smaller model.context"
        )


def _check_tokenizer(manifest: Manifest, folder: Path) -> None:
    """Raise ConfigError if the tokenizer has tokens that the manifest does not count, so that it made other shards."""
    if manifest.end is not None and manifest.end >= manifest.vocabulary:
        raise ConfigError(
            f"data.folder: {folder / MANIFEST_FILE}: the token {manifest.end} ends a document, but the vocabulary has "
            f"{manifest.vocabulary} tokens; {PREPARE}"
        )
    if manifest.tokenizer is None or find_spec("tokenizers") is None:  # an extra, which only `sample` needs
        return
    path = folder / BLOBS_FOLDER / manifest.tokenizer.hash
    if path.is_file() and (found := JsonTokenizer(path, manifest.end).vocabulary) > manifest.vocabulary:
        raise ConfigError(
            f"data.folder: the tokenizer {path} has {found} tokens, but the manifest says {manifest.vocabulary}, so it "
            "is not the one that made the shards; run `thinwire-coordinator prepare` again"
        )


def _blobs_of(manifest: Manifest, folder: Path, go_on: Callable[[], None]) -> dict[Blob, Path]:
    """All blobs of a manifest, and where they are in its folder. Raises ConfigError if one is not there whole."""
    for source in manifest.sources:
        for shard in (*source.train, *source.held_out):
            if wrong := wrong_size(shard, np.dtype(manifest.token)):
                raise ConfigError(f"data.folder: {folder / MANIFEST_FILE}: shard {wrong}; {PREPARE}")
    found = {}
    for blob in manifest.blobs():
        go_on()
        path = folder / BLOBS_FOLDER / blob.hash
        size = path.stat().st_size if path.is_file() else None
        if size != blob.size:
            what = "is missing" if size is None else f"has {size:,} bytes, and must have {blob.size:,}"
            raise ConfigError(f"data.folder: {path} {what}; run `thinwire-coordinator prepare` again")
        found[blob] = path
    return found


DATA_KINDS.register("tokens")(TokensKind())
