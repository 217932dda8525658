"""Tests of rows: the hash covers each field, and bytes that are not a row are refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire_proto.errors import PayloadError
from thinwire_proto.wire.rows import EXTRAS_DEPTH_MAX, EXTRAS_MAX, Counted, Row, contribution_hash, genesis, parse_row

COUNTED = (Counted("n" * 32, b"c" * 32, 8, 8),)
EXTRAS = {"b": [1, {"z": b"x", "a": None}], "a": "text"}
ROW = Row(3, 4, 1, 2**64 - 1, 17, b"b" * 32, 99, COUNTED, b"p" * 32, extras=EXTRAS)
PLAIN = replace(ROW, extras={})
BOTH = pytest.mark.parametrize("row", [ROW, PLAIN], ids=["with more", "plain"])


@BOTH
def test_a_row_comes_back(row: Row) -> None:
    assert parse_row(row.canonical()) == row
    assert parse_row(row.canonical()).hash == row.hash


@given(st.data(), st.sampled_from([PLAIN, ROW]))
def test_a_damaged_row_is_refused_or_has_another_hash(data: st.DataObject, row: Row) -> None:
    damaged = bytearray(row.canonical())
    offset = data.draw(st.integers(0, len(damaged) - 1))
    damaged[offset] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(PayloadError):
        assert parse_row(bytes(damaged)).hash != row.hash


def test_each_input_changes_a_hash() -> None:
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
def test_counted_entries_are_checked_by_type(entry: list[object]) -> None:
    version, fields, extras = msgpack.unpackb(PLAIN.canonical())
    fields[7] = [entry]
    with pytest.raises(PayloadError, match="not a row"):
        parse_row(msgpack.packb([version, fields, extras]))


@BOTH
def test_a_row_has_exactly_one_encoding(row: Row) -> None:
    """The hash covers the bytes sent. Step 3 encoded in three bytes would be the same row with another hash."""
    longer = row.canonical().replace(b"\x99\x03", b"\x99\xcd\x00\x03", 1)
    assert msgpack.unpackb(longer) == msgpack.unpackb(row.canonical())
    with pytest.raises(PayloadError, match="not in canonical form"):
        parse_row(longer)


def test_unknown_optional_fields_are_hashed_and_kept() -> None:
    """A row with an unknown field of a later version is passed on with the same hash."""
    plain = replace(ROW, extras={})
    later = replace(ROW, extras={"signature": b"s" * 64, "about": {"region": "north", "areas": [1, 2]}})
    again = parse_row(later.canonical())
    assert again.extras == later.extras
    assert again.canonical() == later.canonical()
    assert len({plain.hash, later.hash, replace(later, extras={"signature": b"t" * 64}).hash}) == 3
    assert replace(later, extras=dict(reversed(list(later.extras.items())))).canonical() == later.canonical()


MANY = {f"{number:02}": number for number in range(EXTRAS_MAX + 1)}
NESTED: object = "deep"
for _ in range(EXTRAS_DEPTH_MAX + 1):
    NESTED = [NESTED]


@pytest.mark.parametrize("extras", [{"a": NESTED}, {b"a": 1}, {"a": {1: 2}}, [], {"a": msgpack.Timestamp(1)}, MANY])
def test_optional_fields_are_bounded_and_plain(extras: object) -> None:
    _, fields, _ = msgpack.unpackb(ROW.canonical())
    with pytest.raises(PayloadError, match="not a row"):
        parse_row(msgpack.packb([2, fields, extras]))
