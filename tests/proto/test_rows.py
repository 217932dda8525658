"""Rows chain: each field is in the hash, and bytes that are no row are refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire_proto.errors import PayloadError
from thinwire_proto.wire.rows import Counted, Row, contribution_hash, genesis, parse_row

ROW = Row(3, 4, 1, 2**64 - 1, 17, b"b" * 32, 99, (Counted("n" * 32, b"c" * 32, 8, 8),), b"p" * 32)


def test_a_row_comes_back() -> None:
    assert parse_row(ROW.canonical()) == ROW
    assert parse_row(ROW.canonical()).hash == ROW.hash


@pytest.mark.parametrize("field", ["step", "round", "term", "nonce", "fingerprint", "body_bytes"])
def test_each_number_is_in_the_hash(field: str) -> None:
    assert replace(ROW, **{field: getattr(ROW, field) - 1}).hash != ROW.hash


def test_hashes_and_contributions_are_in_the_hash() -> None:
    entry = ROW.counted[0]
    others = [replace(ROW, body_hash=b"x" * 32), replace(ROW, previous=b"x" * 32), replace(ROW, counted=())]
    others += [replace(ROW, counted=(changed,)) for changed in (replace(entry, node="m"), replace(entry, weight=7))]
    assert len({row.hash for row in [ROW, *others]}) == 1 + len(others)


@given(st.binary(max_size=200))
def test_random_bytes_are_no_row(data: bytes) -> None:
    with pytest.raises(PayloadError, match="not a row"):
        parse_row(data)


@given(st.data())
def test_a_damaged_row_is_refused_or_has_another_hash(data: st.DataObject) -> None:
    damaged = bytearray(ROW.canonical())
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(PayloadError):
        assert parse_row(bytes(damaged)).hash != ROW.hash


def test_names_hang_on_all_that_they_name() -> None:
    names = {
        contribution_hash(b"c" * 32, 1, 2, "node", b"payload"),
        contribution_hash(b"d" * 32, 1, 2, "node", b"payload"),
        contribution_hash(b"c" * 32, 2, 2, "node", b"payload"),
        contribution_hash(b"c" * 32, 1, 3, "node", b"payload"),
        contribution_hash(b"c" * 32, 1, 2, "other", b"payload"),
        contribution_hash(b"c" * 32, 1, 2, "node", b"another"),
    }
    assert len(names) == 6
    assert len({genesis(a, b) for a in (b"1", b"2") for b in (b"3", b"4")}) == 4


@pytest.mark.parametrize(
    "entry", [["n" * 32, b"c" * 32, -3, 8], ["n" * 32, b"c" * 32, "8", 8], [7, b"c" * 32, 8, 8], [[1], b"c" * 32, 8, 8]]
)
def test_who_counted_is_checked_by_type(entry: list[object]) -> None:
    fields = msgpack.unpackb(ROW.canonical())
    fields[7] = [entry]
    with pytest.raises(PayloadError, match="not a row"):
        parse_row(msgpack.packb(fields))


def test_a_row_has_one_way_of_being_written() -> None:
    """Its hash is of the bytes that travel: step 3 in three bytes would be the same row under another hash."""
    longer = ROW.canonical().replace(b"\x99\x03", b"\x99\xcd\x00\x03", 1)
    assert msgpack.unpackb(longer) == msgpack.unpackb(ROW.canonical())
    with pytest.raises(PayloadError, match="not a row as it is written"):
        parse_row(longer)
