"""The data kind `corpus`: samples are windows of the corpus text, for a model of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.contract import Contract, CorpusSpec, RunSpec
from thinwire_proto.data.corpus import Corpus, corpus_of, packed_bytes_max, unpack_corpus, windows
from thinwire_proto.data.order import sample_at
from thinwire_proto.data.stdlib import make_corpus
from thinwire_proto.errors import ConfigError
from thinwire_proto.task import DATA_KINDS, Batch


class CorpusText:
    """A `DataSource` over a corpus. A batch is one tensor of tokens, int64 [samples, context + 1]."""

    def __init__(self, corpus: Corpus, contract: Contract) -> None:
        self._corpus = corpus
        self._spec = contract.data
        self._train = windows(corpus.train, contract.model.context)
        self._held_out = windows(corpus.held_out, contract.model.context)

    def batch(self, positions: Sequence[int]) -> Batch:
        spec, count = self._spec, len(self._train)
        chosen = [sample_at(position, spec.seed, count, spec.order) for position in positions]
        return _batch_of(np.stack([self._train[sample] for sample in chosen]))

    def held_out(self, samples_max: int) -> Batch:
        every = self._held_out
        return _batch_of(every[np.linspace(0, len(every) - 1, min(samples_max, len(every)), dtype=np.int64)])

    def encode(self, text: str) -> Tensor:
        return torch.tensor(list(text.encode()), dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        return bytes(token for token in tokens.tolist() if token < 256).decode(errors="replace")

    def describe(self) -> str:
        return f"corpus {self._corpus.hash}: {self._corpus.size:,} bytes in {len(self._corpus.files)} files"


def _batch_of(rows: np.ndarray) -> Batch:
    return (torch.from_numpy(rows.astype(np.int64)),)


class CorpusKind:
    """A `DataKind`. A new run uses the corpus of the coordinator's own Python."""

    def make(self, run: RunSpec, go_on: Callable[[], None]) -> tuple[CorpusSpec, bytes]:
        spec, corpus, context = corpus_of(run.data), make_corpus(go_on), run.model.context
        if spec.corpus_hash not in ("", corpus.hash):
            raise ConfigError("data.corpus_hash: this machine has another corpus; remove the key to use that corpus")
        if min(len(corpus.train), len(corpus.held_out)) <= context:
            raise ConfigError(
                f"this Python's standard library has too little text for model.context = {context}: "
                f"{len(corpus.train):,} bytes to train on, {len(corpus.held_out):,} held out; install its sources"
            )
        sizes = {"corpus_bytes": corpus.size, "train_bytes": len(corpus.train)}
        return spec.model_copy(update={"corpus_hash": corpus.hash} | sizes), corpus.pack()

    def file_bytes_max(self, spec: CorpusSpec) -> int:
        return packed_bytes_max(spec)

    def open(self, file: bytes, contract: Contract) -> CorpusText:
        return CorpusText(unpack_corpus(file, corpus_of(contract.data)), contract)


DATA_KINDS.register("corpus")(CorpusKind())
