"""A corpus is identified by its content."""

from __future__ import annotations

import numpy as np
import pytest

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


def test_windows_cover_the_text_and_share_one_byte() -> None:
    text = np.arange(100, dtype=np.uint8)
    found = windows(text, 33)
    assert found.shape == (3, 34)
    assert found[:, 0].tolist() == [0, 33, 66]
    assert found[:, -1].tolist() == [33, 66, 99]
    assert windows(text[:33], 33).shape == (0, 34)
