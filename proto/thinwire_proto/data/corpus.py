"""The corpus of a small run: named text files as bytes. Some files are held out completely.

The SHA-256 of its canonical form identifies a corpus, so a node can check a copy from any source. Sample i of the
training text consists of the bytes i·context … (i + 1)·context, both ends included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import msgpack
import numpy as np
import numpy.typing as npt
import zstandard

from thinwire_proto.contract import CorpusSpec, DataSpec
from thinwire_proto.errors import ContractError, PayloadError

CORPUS_VERSION = 1
ZSTD_LEVEL = 9
OVERHEAD_BYTES_MAX = 1 << 24  # file names and msgpack heads
FILES_MAX = 1 << 18
Bytes = npt.NDArray[np.uint8]
Token = TypeVar("Token", bound=np.generic)


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus."""

    name: str
    content: bytes
    held_out: bool


class Corpus:
    """The files of a corpus, ordered by name."""

    def __init__(self, files: Sequence[CorpusFile]) -> None:
        self.files = tuple(sorted(files, key=lambda file: file.name))

    @cached_property
    def _canonical(self) -> bytes:
        files = [[file.name, file.held_out, file.content] for file in self.files]
        return bytes(msgpack.packb([CORPUS_VERSION, files], use_bin_type=True))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical form, 64 hexadecimal digits."""
        return hashlib.sha256(self._canonical).hexdigest()

    @cached_property
    def size(self) -> int:
        """Bytes of text, held-out files included."""
        return sum(len(file.content) for file in self.files)

    @cached_property
    def train(self) -> Bytes:
        """The training files, concatenated, uint8."""
        return self._joined(held_out=False)

    @cached_property
    def held_out(self) -> Bytes:
        """The held-out files, concatenated, uint8."""
        return self._joined(held_out=True)

    def _joined(self, held_out: bool) -> Bytes:
        return np.frombuffer(b"".join(file.content for file in self.files if file.held_out == held_out), np.uint8)

    def pack(self) -> bytes:
        """The compressed form, which is stored and served."""
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(self._canonical)


def corpus_of(data: DataSpec) -> CorpusSpec:
    """The data section as a corpus spec. Raises ContractError if it is of another kind."""
    if not isinstance(data, CorpusSpec):
        raise ContractError(f"data.kind must be corpus here; it is {data.kind}")
    return data


def packed_bytes_max(data: CorpusSpec) -> int:
    """Upper bound on the size of the packed corpus."""
    return data.corpus_bytes + (data.corpus_bytes >> 8) + OVERHEAD_BYTES_MAX


def unpack_corpus(packed: bytes, data: CorpusSpec) -> Corpus:
    """Unpack a corpus. Raises PayloadError if it is not the one that `data` names."""
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
        version, files = _unpacked(canonical, size_max)
        read = [CorpusFile(name, content, held_out) for name, held_out, content in files]
        if not all(type(one.name) is str and type(one.content) is bytes for one in read):
            raise TypeError("a file's name or content has the wrong type")
        corpus = Corpus(read)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PayloadError(f"the corpus has the right hash, but cannot be read: {error}") from None
    if version != CORPUS_VERSION or corpus.size != data.corpus_bytes or len(corpus.train) != data.train_bytes:
        raise PayloadError("the corpus has the right hash, but its version or size differs from the contract")
    return corpus


def _unpacked(canonical: bytes, size_max: int) -> Any:
    """Read the canonical form. Raises ValueError if it has more lists than a corpus, whose objects would fill the
    memory: an empty list is one byte here and 56 in memory."""
    lists = 0

    def count(found: list[Any]) -> list[Any]:
        nonlocal lists
        lists += 1
        if lists > FILES_MAX:
            raise ValueError(f"it has more than {FILES_MAX:,} files")
        return found

    return msgpack.unpackb(
        canonical,
        raw=False,
        max_bin_len=size_max,
        max_array_len=FILES_MAX,
        max_map_len=0,
        max_ext_len=0,
        list_hook=count,
    )


def windows(text: npt.NDArray[Token], context: int) -> npt.NDArray[Token]:
    """All samples of a text as a view [samples, context + 1]; adjacent samples share one token."""
    samples = max(0, (len(text) - 1) // context)
    if samples == 0:
        return np.zeros((0, context + 1), text.dtype)
    return np.lib.stride_tricks.sliding_window_view(text, context + 1)[: samples * context : context]
