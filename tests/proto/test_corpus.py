"""A corpus is identified by its content, and each pass contains every sample once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small import small_contract, small_corpus
from thinwire_proto.data.corpus import Corpus, CorpusFile, sample_at, unpack_corpus, windows
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.mix64 import GOLDEN, mix64


def test_packed_corpus_round_trips_and_matches_the_contract() -> None:
    corpus, data = small_corpus(), small_contract().data
    again = unpack_corpus(corpus.pack(), data)
    assert again.files == corpus.files
    assert again.hash == corpus.hash
    assert again.held_out.tobytes() == corpus.files[1].content


def test_other_corpus_or_invalid_bytes_are_refused() -> None:
    data = small_contract().data
    other = Corpus([CorpusFile("a.py", b"other text" * 1000, False)])
    with pytest.raises(PayloadError, match="the contract names"):
        unpack_corpus(other.pack(), data)
    for packed in (b"", b"junk", small_corpus().pack()[:-9]):
        with pytest.raises(PayloadError):
            unpack_corpus(packed, data)


def test_order_of_files_does_not_change_the_hash() -> None:
    corpus = small_corpus()
    assert Corpus(corpus.files[::-1]).hash == corpus.hash


@given(st.integers(0, 2**63 - 1), st.integers(1, 300), st.integers(0, 5))
def test_each_pass_has_every_sample_once(seed: int, samples: int, pass_number: int) -> None:
    positions = range(pass_number * samples, (pass_number + 1) * samples)
    assert sorted(sample_at(position, seed, samples) for position in positions) == list(range(samples))


def test_each_pass_and_seed_has_its_own_order() -> None:
    starts = ((1, 0), (1, 50), (2, 0))
    assert len({tuple(sample_at(p, seed, 50) for p in range(start, start + 50)) for seed, start in starts}) == 3


def test_the_order_is_a_sort_by_mix64_on_any_machine() -> None:
    """A deliberately simple reference in Python integers."""
    seed, pass_number, samples = 7, 3, 40
    key = mix64(mix64(seed) + (pass_number + 1) * GOLDEN)
    expected = sorted(range(samples), key=lambda sample: mix64(key + sample))
    assert [sample_at(pass_number * samples + place, seed, samples) for place in range(samples)] == expected


def test_windows_cover_the_text_and_share_one_byte() -> None:
    text = np.arange(100, dtype=np.uint8)
    found = windows(text, 33)
    assert found.shape == (3, 34)
    assert found[:, 0].tolist() == [0, 33, 66]
    assert found[:, -1].tolist() == [33, 66, 99]
    assert windows(text[:33], 33).shape == (0, 34)
