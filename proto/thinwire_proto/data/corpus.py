"""The corpus of a small run: named files of text as bytes, some of them held out whole.

Its identity is the SHA-256 of its canonical form, so a node that fetched it from anywhere knows that it is the right
one. Sample i of the training text is the bytes i·context … (i + 1)·context, both ends included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import msgpack
import numpy as np
import numpy.typing as npt
import zstandard

from thinwire_proto.contract import CorpusSpec, DataSpec
from thinwire_proto.errors import ContractError, PayloadError

CORPUS_VERSION = 1
ZSTD_LEVEL = 9
OVERHEAD_BYTES_MAX = 1 << 24  # file names and msgpack heads
Bytes = npt.NDArray[np.uint8]
Token = TypeVar("Token", bound=np.generic)


@dataclass(frozen=True)
class CorpusFile:
    name: str
    content: bytes
    held_out: bool


class Corpus:
    """Files in the order of their names."""

    def __init__(self, files: Sequence[CorpusFile]) -> None:
        self.files = tuple(sorted(files, key=lambda file: file.name))

    @cached_property
    def _canonical(self) -> bytes:
        files = [[file.name, file.held_out, file.content] for file in self.files]
        return bytes(msgpack.packb([CORPUS_VERSION, files], use_bin_type=True))

    @cached_property
    def hash(self) -> str:
        """64 hexadecimal digits."""
        return hashlib.sha256(self._canonical).hexdigest()

    @cached_property
    def size(self) -> int:
        """Bytes of text, held-out files included."""
        return sum(len(file.content) for file in self.files)

    @cached_property
    def train(self) -> Bytes:
        """The files to train on, one behind the other, uint8."""
        return self._joined(held_out=False)

    @cached_property
    def held_out(self) -> Bytes:
        """The files that nobody trains on, one behind the other, uint8."""
        return self._joined(held_out=True)

    def _joined(self, held_out: bool) -> Bytes:
        return np.frombuffer(b"".join(file.content for file in self.files if file.held_out == held_out), np.uint8)

    def pack(self) -> bytes:
        """The compressed form, in which it is kept and served."""
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(self._canonical)


def corpus_of(data: DataSpec) -> CorpusSpec:
    """Raises ContractError if the data is of another kind."""
    if not isinstance(data, CorpusSpec):
        raise ContractError(f"data.kind must be corpus here; it is {data.kind}")
    return data


def packed_bytes_max(data: CorpusSpec) -> int:
    """No packed corpus of the contract is longer than this."""
    return data.corpus_bytes + (data.corpus_bytes >> 8) + OVERHEAD_BYTES_MAX


def unpack_corpus(packed: bytes, data: CorpusSpec) -> Corpus:
    """The corpus that `data` names. Raises PayloadError if these bytes are not it."""
    size_max = data.corpus_bytes + OVERHEAD_BYTES_MAX
    try:
        if zstandard.get_frame_parameters(packed).content_size > size_max:
            raise PayloadError(f"the corpus must unpack to at most {size_max} bytes")
        canonical = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size_max)
    except zstandard.ZstdError as error:
        raise PayloadError(f"the corpus does not decompress: {error}") from None
    found = hashlib.sha256(canonical).hexdigest()
    if found != data.corpus_hash:
        raise PayloadError(f"the corpus has hash {found[:16]}…; the contract names {data.corpus_hash[:16]}…")
    try:
        version, files = msgpack.unpackb(canonical, raw=False, max_bin_len=size_max)
        corpus = Corpus([CorpusFile(name, content, held_out) for name, held_out, content in files])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PayloadError(f"the corpus has the right hash, but cannot be read: {error}") from None
    if version != CORPUS_VERSION or corpus.size != data.corpus_bytes or len(corpus.train) != data.train_bytes:
        raise PayloadError("the corpus has the right hash, but another version or size than the contract says")
    return corpus


def windows(text: npt.NDArray[Token], context: int) -> npt.NDArray[Token]:
    """All samples of a text as a view [samples, context + 1]; neighbours share one token."""
    samples = max(0, (len(text) - 1) // context)
    if samples == 0:
        return np.zeros((0, context + 1), text.dtype)
    return np.lib.stride_tricks.sliding_window_view(text, context + 1)[: samples * context : context]
