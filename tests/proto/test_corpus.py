"""A corpus is identified by its content."""

from __future__ import annotations

import hashlib

import msgpack
import numpy as np
import pytest
import zstandard

from support.small import small_contract, small_corpus
from thinwire_proto.data.corpus import Corpus, CorpusFile, corpus_of, unpack_corpus, windows
from thinwire_proto.errors import PayloadError


def test_packed_corpus_round_trips_and_matches_the_contract() -> None:
    corpus, data = small_corpus(), corpus_of(small_contract().data)
    again = unpack_corpus(corpus.pack(), data)
    assert again.files == corpus.files
    assert again.hash == corpus.hash
    assert again.held_out.tobytes() == corpus.files[1].content


def test_other_corpus_or_invalid_bytes_are_refused() -> None:
    data = corpus_of(small_contract().data)
    other = Corpus([CorpusFile("a.py", b"other text" * 1000, False)])
    with pytest.raises(PayloadError, match="the contract names"):
        unpack_corpus(other.pack(), data)
    for packed in (b"", b"junk", small_corpus().pack()[:-9]):
        with pytest.raises(PayloadError):
            unpack_corpus(packed, data)


def test_order_of_files_does_not_change_the_hash() -> None:
    corpus = small_corpus()
    assert Corpus(corpus.files[::-1]).hash == corpus.hash


def test_windows_cover_the_text_and_share_one_byte() -> None:
    text = np.arange(100, dtype=np.uint8)
    found = windows(text, 33)
    assert found.shape == (3, 34)
    assert found[:, 0].tolist() == [0, 33, 66]
    assert found[:, -1].tolist() == [33, 66, 99]
    assert windows(text[:33], 33).shape == (0, 34)


def test_a_corpus_of_the_right_hash_with_other_types_is_refused() -> None:
    """A fuzzer's find: an organizer may name any bytes by their hash."""
    for name, content in (("a", 7), ("a", 0.5), (3, b"text")):
        canonical = msgpack.packb([1, [[name, False, content]]], use_bin_type=True)
        named = {"corpus_hash": hashlib.sha256(canonical).hexdigest()}
        spec = corpus_of(small_contract().data).model_copy(update=named)
        with pytest.raises(PayloadError, match="cannot be read"):
            unpack_corpus(zstandard.ZstdCompressor().compress(canonical), spec)
