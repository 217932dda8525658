"""Samples from token shards, which nodes fetch as they need them.

A sample of a shard of text consists of the tokens i·context … (i + 1)·context, both ends included. No sample reaches
across the end of a shard; a document may. A sample of a shard of conversations is a row of it, with marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from thinwire_proto.blobs import Blob, Blobs
from thinwire_proto.contract import Contract, DataSpec
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.contract.data.tokens import HELD_OUT, WEIGHTS, TokensSpec
from thinwire_proto.data.byte_tokenizer import ByteTokenizer
from thinwire_proto.data.conversations import counted_of, text_marks, weight_of
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.data.manifest import Manifest, Source
from thinwire_proto.data.shard_order import Mixtures, ShardOrder
from thinwire_proto.data.sharded import HeldOut, Place, ShardedData
from thinwire_proto.errors import ConfigError, ContractError, PayloadError
from thinwire_proto.task import Batch, HeldOutSet, Tokenizer

CHECKED_TOKENS = 1 << 22
"""Tokens that `check` reads at a time."""


class TokenShards(ShardedData):
    """A `DataSource` over token shards. A batch is one tensor of tokens, int64 [samples, context + 1]. If the manifest
    has conversations, a second tensor has the marks of the tokens, uint8 in the same shape."""

    def __init__(self, manifest: Manifest, spec: TokensSpec, context: int, blobs: Blobs) -> None:
        self._manifest = manifest
        self._context = context
        self._type = np.dtype(manifest.token).newbyteorder("<")
        self._checked: set[Blob] = set()
        self._seed = spec.seed
        self._shards = {shard.blob: shard for source in manifest.sources for shard in (*source.train, *source.held_out)}
        self._drawn: list[Source] = []
        self._mixtures: list[tuple[int, Mapping[str, float]]] = []
        self._added: Mapping[str, Shard] = {}
        train, self._mixture = self._mixed([(0, spec.weights)])
        super().__init__(blobs, train, self._mixture, self._measured({}))

    def _measured(self, added: Mapping[str, Shard]) -> dict[str, HeldOut]:
        """The held-out sets: those of the manifest, and those that were added."""
        self._added = added
        sets = {
            source.name: shards
            for source in self._manifest.sources
            if (shards := long_enough(source.held_out, self._context))
        }
        sets |= {name: [shard] for name, shard in added.items()}
        self._shards |= {shard.blob: shard for shard in added.values()}
        found = {
            name: HeldOut(shards, (windows_in(shard, self._context) for shard in shards))
            for name, shards in sets.items()
        }
        self._held_out_sets = tuple(
            HeldOutSet(
                name,
                found[name].samples,
                0 if self._has_preferences else sum(text_bytes_in(shard, self._context) for shard in shards),
                sum(shard.counted for shard in shards),
                self.loss_unit,
            )
            for name, shards in sets.items()
        )
        return found

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
        added = tokens_of(contract.data).held_out
        for name, shard in added.items():
            self._check_added(name, shard)
        first = tokens_of(contract.first.data).weights
        mixtures: list[tuple[int, Mapping[str, float]]] = [(0, first)]
        for amendment in contract.amendments:
            if (weights := amendment.changes.get(WEIGHTS)) is not None:
                try:
                    check_enough(self._manifest, weights, self._context)
                except ConfigError as error:
                    raise ContractError(str(error)) from None
                mixtures.append((amendment.position, weights))
        if mixtures != self._mixtures:
            self._train, self._mixture = self._mixed(mixtures)
            self._order = self._mixture
        if added != self._added:
            self._held_out = self._measured(added)

    def _check_added(self, name: str, shard: Shard) -> None:
        """Raise ContractError if a shard cannot be a held-out set of this name."""
        if any(source.name == name for source in self._manifest.sources):
            raise ContractError(f"{HELD_OUT}: the data have a source {name!r} already; give another name")
        if self._has_preferences:
            raise ContractError(f"{HELD_OUT}: {name}: the data hold preferences, and text has another loss; give none")
        wrong = "holds conversations, and only text can be added" if shard.counted else wrong_size(shard, self._type)
        if wrong:
            raise ContractError(f"{HELD_OUT}: {name}: {wrong}")
        if not windows_in(shard, self._context):
            raise ContractError(
                f"{HELD_OUT}: {name} has {shard.tokens:,} tokens, and a sample needs {self._context + 1:,}; give more "
                "text"
            )

    def blobs(self) -> Iterable[Blob]:
        return (*self._manifest.blobs(), *(shard.blob for shard in self._added.values()))

    def check(self, blob: Blob) -> None:
        """Check that a shard has the size of its tokens, and no token outside the vocabulary."""
        path, shard = self._blobs.path(blob), self._shards.get(blob)
        if shard is None or blob in self._checked:
            return
        if wrong := wrong_size(shard, self._type):
            raise PayloadError(f"shard {wrong}")
        kind = row_type(self._context, self._type) if shard.counted else self._type
        counts, form = 0, self._manifest.conversations
        with path.open("rb") as file:
            while len(part := np.fromfile(file, kind, max(1, CHECKED_TOKENS * self._type.itemsize // kind.itemsize))):
                tokens = part["tokens"] if shard.counted else part
                if (most := int(tokens.max())) >= self._manifest.vocabulary:
                    raise PayloadError(
                        f"shard {blob.hash[:16]}… has the token {most}, but the vocabulary has "
                        f"{self._manifest.vocabulary} tokens"
                    )
                if shard.counted:
                    assert form is not None  # of a manifest with such shards
                    try:
                        counts += counted_of(part["marks"], form)
                    except ValueError as error:
                        raise PayloadError(f"shard {blob.hash[:16]}… {error}") from None
        if counts != shard.counted:
            raise PayloadError(
                f"shard {blob.hash[:16]}… has {counts:,} tokens that count, and the manifest says {shard.counted:,}"
            )
        self._checked.add(blob)

    @property
    def _has_preferences(self) -> bool:
        return self._manifest.conversations is not None and self._manifest.conversations.preferences

    @property
    def loss_unit(self) -> str:
        return "pair" if self._has_preferences else "token"

    @property
    def has_conversations(self) -> bool:
        return self._manifest.conversations is not None

    def held_out_sets(self) -> tuple[HeldOutSet, ...]:
        return self._held_out_sets

    def shard_of(self, text: str) -> tuple[bytes, int]:
        """A text as one document of a shard: its bytes, and how many tokens they are. Raises BlobMissing."""
        tokens = self.tokenizer.encode(text).numpy()
        if self._manifest.end is not None:
            tokens = np.append(tokens, self._manifest.end)
        return tokens.astype(self._type).tobytes(), len(tokens)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the manifest. Raises BlobMissing if one of its files is not on this machine."""
        manifest = self._manifest
        files = {name: self._blobs.path(file.blob).read_bytes() for name, file in manifest.files.items()}
        if manifest.tokenizer is None:
            return ByteTokenizer(files)
        return JsonTokenizer(self._blobs.path(manifest.tokenizer.blob), manifest.end, files)

    def describe(self) -> str:
        shards = sum(len(source.train) for source in self._drawn)
        tokens = sum(shard.tokens for source in self._drawn for shard in source.train)
        names = ", ".join(source.name for source in self._drawn)
        return f"{tokens:,} tokens in {shards} shards of {names}"

    def held_out_weight(self, name: str, samples: Sequence[int]) -> int:
        if not any(shard.counted for shard, _ in map(self._held_out[name].place, samples)):
            return len(samples)
        return weight_of(*self.held_out(name, samples))

    def tokens_a_sample(self, context: int) -> int:
        """See `DataSource.tokens_a_sample`: of the newest mixture."""
        return max(1, round(self._mixture.mean([counted_a_sample(shards, context) for shards in self._train])))

    def _read(self, places: Sequence[Place]) -> Batch:
        length, found = self._context + 1, np.empty((len(places), self._context + 1), np.int64)
        of_token = self._type.itemsize
        texts = [row for row, (shard, _) in enumerate(places) if not shard.counted]
        windows = self._records([places[row] for row in texts], self._context * of_token, length * of_token)
        for row, record in windows:
            found[texts[row]] = np.frombuffer(record, self._type)
        if self._manifest.conversations is None:
            return (torch.from_numpy(found),)
        marks, kind = text_marks(len(places), length), row_type(self._context, self._type)
        rows = [row for row, (shard, _) in enumerate(places) if shard.counted]
        for row, record in self._records([places[row] for row in rows], kind.itemsize, kind.itemsize):
            read = np.frombuffer(record, kind)[0]
            found[rows[row]], marks[rows[row]] = read["tokens"], torch.from_numpy(read["marks"].copy())
        return torch.from_numpy(found), marks


def row_type(context: int, token: np.dtype[Any]) -> np.dtype[Any]:
    """A row of a shard of conversations."""
    return np.dtype([("tokens", token, (context + 1,)), ("marks", np.uint8, (context + 1,))])


def counted_a_sample(shards: Sequence[Shard], context: int) -> float:
    """The mean number of tokens of a sample that count."""
    samples = sum(windows_in(shard, context) for shard in shards)
    return sum(shard.counted or windows_in(shard, context) * context for shard in shards) / max(1, samples)


def windows_in(shard: Shard, context: int) -> int:
    """The number of samples in a shard: rows, or windows of text, of which adjacent ones share a token."""
    return shard.tokens // (context + 1) if shard.counted else (shard.tokens - 1) // context


def text_bytes_in(shard: Shard, context: int) -> int:
    """Bytes of text that the samples of a shard predict."""
    if shard.counted:
        return shard.text_bytes
    return shard.text_bytes * windows_in(shard, context) * context // shard.tokens


def wrong_size(shard: Shard, kind: np.dtype[Any]) -> str:
    """The problem if a shard's bytes cannot be its tokens; empty if there is none."""
    if shard.size == shard.tokens * (kind.itemsize + (shard.counted > 0)):
        return ""
    return f"{shard.hash[:16]}… has {shard.size:,} bytes, which are not {shard.tokens:,} tokens of {kind}"


def long_enough(shards: Iterable[Shard], context: int) -> list[Shard]:
    """The shards that have at least one sample."""
    return [shard for shard in shards if windows_in(shard, context)]


def drawn_sources(manifest: Manifest, weights: Mapping[str, float]) -> list[Source]:
    """The sources that samples are drawn from. Those that `weights` leaves out are not drawn."""
    return [source for source in manifest.sources if not weights or source.name in weights]


def tokens_of(data: DataSpec) -> TokensSpec:
    """The data section as a spec of token shards. Raises ContractError if it is of another kind."""
    if not isinstance(data, TokensSpec):
        raise ContractError(f"data.kind must be tokens here; it is {data.kind}")
    return data


def check_enough(manifest: Manifest, weights: Mapping[str, float], context: int) -> None:
    """Raise ConfigError if a weight names no source, or there is too little text to train or to measure on."""
    if (form := manifest.conversations) is not None and form.context != context:
        raise ConfigError(
            f"data: the conversations are packed for model.context = {form.context}, and it is {context}; set it to "
            f"{form.context}, or run `thinwire-coordinator prepare` again with --context {context}"
        )
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
