"""The data kind `corpus`: samples are windows of the corpus text, for a model of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from thinwire_proto.blobs import Blobs
from thinwire_proto.contract import Contract, CorpusSpec, RunSpec
from thinwire_proto.data.byte_tokenizer import ByteTokenizer
from thinwire_proto.data.corpus import Corpus, corpus_of, packed_bytes_max, unpack_corpus, windows
from thinwire_proto.data.order import sample_at
from thinwire_proto.data.stdlib import make_corpus
from thinwire_proto.errors import ConfigError
from thinwire_proto.task import DATA_KINDS, Batch, DataKind, DataSource, HeldOutSet, Made

COPIES = 4
"""Copies of a corpus in memory while it is opened: packed, unpacked, its files, and the text that they make."""
HELD_OUT = "held_out"
"""The name of the only held-out set."""


class CorpusText(DataSource):
    """A `DataSource` over a corpus. A batch is one tensor of tokens, int64 [samples, context + 1]."""

    def __init__(self, corpus: Corpus, contract: Contract) -> None:
        self._corpus = corpus
        self._spec = contract.data
        self._train = windows(corpus.train, contract.model.context)
        self._held_out = windows(corpus.held_out, contract.model.context)

    def batch(self, positions: Sequence[int]) -> Batch:
        spec, count = self._spec, len(self._train)
        chosen = [sample_at(position, spec.seed, count) for position in positions]
        return _batch_of(np.stack([self._train[sample] for sample in chosen]))

    def held_out_sets(self) -> tuple[HeldOutSet, ...]:
        samples, context = self._held_out.shape[0], self._held_out.shape[1] - 1
        return (HeldOutSet(HELD_OUT, samples, samples * context),)

    def held_out(self, name: str, samples: Sequence[int]) -> Batch:
        return _batch_of(self._held_out[list(samples)])

    @property
    def tokenizer(self) -> ByteTokenizer:
        return ByteTokenizer()

    def describe(self) -> str:
        return f"corpus {self._corpus.hash}: {self._corpus.size:,} bytes in {len(self._corpus.files)} files"


def _batch_of(rows: np.ndarray) -> Batch:
    return (torch.from_numpy(rows.astype(np.int64)),)


class CorpusKind(DataKind):
    """A `DataKind`. A new run uses the corpus of the coordinator's own Python."""

    has_blobs = False

    def make(self, run: RunSpec, go_on: Callable[[], None]) -> Made:
        spec, corpus, context = corpus_of(run.data), make_corpus(go_on), run.model.context
        if spec.corpus_hash not in ("", corpus.hash):
            raise ConfigError("data.corpus_hash: this machine has another corpus; remove the key to use that corpus")
        if min(len(corpus.train), len(corpus.held_out)) <= context:
            raise ConfigError(
                f"this Python's standard library has too little text for model.context = {context}: "
                f"{len(corpus.train):,} bytes to train on, {len(corpus.held_out):,} held out; install its sources"
            )
        sizes = {"corpus_bytes": corpus.size, "train_bytes": len(corpus.train)}
        return Made(spec.model_copy(update={"corpus_hash": corpus.hash} | sizes), corpus.pack())

    def file_bytes_max(self, spec: CorpusSpec) -> int:
        return packed_bytes_max(spec)

    def memory_bytes(self, spec: CorpusSpec) -> int:
        return COPIES * packed_bytes_max(spec)

    def open(self, file: bytes, contract: Contract, blobs: Blobs) -> CorpusText:
        return CorpusText(unpack_corpus(file, corpus_of(contract.data)), contract)


DATA_KINDS.register("corpus")(CorpusKind())
