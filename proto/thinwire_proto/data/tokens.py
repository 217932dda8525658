"""The data kind `tokens`: samples are windows of token shards, which nodes fetch as they need them.

A sample of a shard consists of the tokens i·context … (i + 1)·context, both ends included. No sample reaches across the
end of a shard; a document may.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from thinwire_proto.blobs import Blob, Blobs
from thinwire_proto.contract import Contract, DataSpec, RunSpec
from thinwire_proto.contract.data.tokens import TokensSpec
from thinwire_proto.data.byte_tokenizer import ByteTokenizer
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Manifest, Shard, Source, read_manifest
from thinwire_proto.data.shard_order import Mixtures, ShardOrder
from thinwire_proto.data.sharded import HeldOut, Place, ShardedData, paths_of, read_folder
from thinwire_proto.errors import ConfigError, ContractError, PayloadError
from thinwire_proto.task import DATA_KINDS, Batch, DataKind, HeldOutSet, Made, Tokenizer

WEIGHTS = "data.weights"
CHECKED_TOKENS = 1 << 22
"""Tokens that `check` reads at a time."""
PREPARE = "make it with `thinwire-coordinator prepare`"

Tokens = npt.NDArray[np.int64]


class TokenShards(ShardedData):
    """A `DataSource` over token shards. A batch is one tensor of tokens, int64 [samples, context + 1]."""

    def __init__(self, manifest: Manifest, spec: TokensSpec, context: int, blobs: Blobs) -> None:
        self._manifest = manifest
        self._context = context
        self._type = np.dtype(manifest.token).newbyteorder("<")
        self._checked: set[Blob] = set()
        self._seed = spec.seed
        self._shards = {shard.blob: shard for source in manifest.sources for shard in (*source.train, *source.held_out)}
        self._drawn: list[Source] = []
        self._mixtures: list[tuple[int, Mapping[str, float]]] = []
        train, order = self._mixed([(0, spec.weights)])
        self._held_out_shards = {
            source.name: shards for source in manifest.sources if (shards := long_enough(source.held_out, context))
        }
        held_out = {
            name: HeldOut(shards, (windows_in(shard, context) for shard in shards))
            for name, shards in self._held_out_shards.items()
        }
        super().__init__(blobs, train, order, held_out)

    def _mixed(self, mixtures: Sequence[tuple[int, Mapping[str, float]]]) -> tuple[list[list[Shard]], Mixtures]:
        """The shards of all drawn sources, and their order. mixtures: from which position on, and the weights.

        A source keeps its number, by which its samples are shuffled, when others come later."""
        self._drawn, self._mixtures = [], list(mixtures)
        for _, weights in mixtures:
            later = [source for source in drawn_sources(self._manifest, weights) if source not in self._drawn]
            self._drawn += later
        train = [long_enough(source.train, self._context) for source in self._drawn]
        samples = [[windows_in(shard, self._context) for shard in shards] for shards in train]
        orders: list[ShardOrder] = []
        for start, weights in mixtures:
            shares = [weights.get(source.name, 0.0) for source in self._drawn] if weights else None
            drawn = orders[-1].drawn_before(start) if orders else ()
            orders.append(ShardOrder(samples, self._seed, shares, start, drawn))
        return train, Mixtures(orders)

    def amend(self, contract: Contract) -> None:
        first = tokens_of(contract.first.data).weights
        mixtures: list[tuple[int, Mapping[str, float]]] = [(0, first)]
        for amendment in contract.amendments:
            if (weights := amendment.changes.get(WEIGHTS)) is not None:
                try:
                    _check_enough(self._manifest, weights, self._context)
                except ConfigError as error:
                    raise ContractError(str(error)) from None
                mixtures.append((amendment.position, weights))
        if mixtures != self._mixtures:
            self._train, self._order = self._mixed(mixtures)

    def blobs(self) -> Iterable[Blob]:
        return self._manifest.blobs()

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
        return tuple(
            HeldOutSet(name, self._held_out[name].samples, sum(text_bytes_in(shard, self._context) for shard in shards))
            for name, shards in self._held_out_shards.items()
        )

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

    def _read(self, places: Sequence[Place]) -> Batch:
        length, found = self._context + 1, np.empty((len(places), self._context + 1), np.int64)
        of_token = self._type.itemsize
        for row, record in self._records(places, self._context * of_token, length * of_token):
            found[row] = np.frombuffer(record, self._type)
        return (torch.from_numpy(found),)


def windows_in(shard: Shard, context: int) -> int:
    """The number of samples in a shard; adjacent ones share a token."""
    return (shard.tokens - 1) // context


def text_bytes_in(shard: Shard, context: int) -> int:
    """Bytes of text that the samples of a shard predict."""
    return shard.text_bytes * windows_in(shard, context) * context // shard.tokens


def wrong_size(shard: Shard, kind: np.dtype[Any]) -> str:
    """The problem if a shard's bytes cannot be its tokens; empty if there is none."""
    if shard.size == shard.tokens * kind.itemsize:
        return ""
    return f"{shard.hash[:16]}… has {shard.size:,} bytes, which are not {shard.tokens:,} tokens of {kind}"


def long_enough(shards: Iterable[Shard], context: int) -> list[Shard]:
    """The shards that have at least one sample."""
    return [shard for shard in shards if windows_in(shard, context)]


def drawn_sources(manifest: Manifest, weights: Mapping[str, float]) -> list[Source]:
    """The sources that samples are drawn from. Those that `weights` leaves out are not drawn."""
    return [source for source in manifest.sources if not weights or source.name in weights]


class TokensKind(DataKind):
    """A `DataKind`. A new run uses a folder that `thinwire-coordinator prepare` wrote."""

    def make(self, run: RunSpec, go_on: Callable[[], None]) -> Made:
        spec = tokens_of(run.data)
        file, manifest = read_folder(Manifest, spec.folder, PREPARE)
        _check_enough(manifest, spec.weights, run.model.context)
        _check_tokenizer(manifest, Path(spec.folder))
        name = hashlib.sha256(file).hexdigest()
        if spec.manifest_hash not in ("", name):
            raise ConfigError(f"data.manifest_hash: {spec.folder} has other data; remove the key to use them")
        derived = {"manifest_hash": name, "manifest_bytes": len(file), "vocabulary": manifest.vocabulary}
        _check_sizes(manifest, Path(spec.folder))
        blobs = paths_of(manifest.blobs(), spec.folder, go_on)
        return Made(spec.model_copy(update={**derived, "folder": ""}), file, blobs)

    def file_bytes_max(self, spec: TokensSpec) -> int:
        return spec.manifest_bytes

    def open(self, file: bytes, contract: Contract, blobs: Blobs) -> TokenShards:
        spec, context = tokens_of(contract.first.data), contract.model.context
        manifest = read_manifest(Manifest, file, spec.manifest_hash)
        if manifest.vocabulary != spec.vocabulary:
            raise PayloadError(
                f"the manifest has {manifest.vocabulary} tokens in its vocabulary; the contract says {spec.vocabulary}"
            )
        try:
            _check_enough(manifest, spec.weights, context)
        except ConfigError as error:
            raise PayloadError(str(error)) from None
        found = TokenShards(manifest, spec, context, blobs)
        found.amend(contract)
        return found


def tokens_of(data: DataSpec) -> TokensSpec:
    """The data section as a spec of token shards. Raises ContractError if it is of another kind."""
    if not isinstance(data, TokensSpec):
        raise ContractError(f"data.kind must be tokens here; it is {data.kind}")
    return data


def _check_enough(manifest: Manifest, weights: Mapping[str, float], context: int) -> None:
    """Raise ConfigError if a weight names no source, or there is too little text to train or to measure on."""
    names = [source.name for source in manifest.sources]
    for name in weights:
        if name not in names:
            raise ConfigError(f"data.weights: there is no source {name!r} in the data; there are {', '.join(names)}")
    drawn = drawn_sources(manifest, weights)
    short = [source.name for source in drawn if not long_enough(source.train, context)]
    if len(short) == len(drawn) or (short and weights):
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


def _check_sizes(manifest: Manifest, folder: Path) -> None:
    """Raise ConfigError if the bytes of a shard cannot be its tokens."""
    for source in manifest.sources:
        for shard in (*source.train, *source.held_out):
            if wrong := wrong_size(shard, np.dtype(manifest.token)):
                raise ConfigError(f"data.folder: {folder / MANIFEST_FILE}: shard {wrong}; {PREPARE}")


DATA_KINDS.register("tokens")(TokensKind())
