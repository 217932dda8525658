"""Bytes are sent in parts that a thin line carries within the time limits of the other end."""

from __future__ import annotations

import pytest

from thinwire_proto.limits import ACCEPT_S, FIRST_MESSAGE_S, PART_S
from thinwire_proto.wire.parts import FIRST_PART_BYTES, PART_BYTES, PART_BYTES_MAX, split_for_upload

THIN_BYTES_S = 64_000 / 8


def test_a_line_of_64_kbit_s_carries_each_part_in_time() -> None:
    assert FIRST_PART_BYTES / THIN_BYTES_S < FIRST_MESSAGE_S / 2
    assert min(PART_S, ACCEPT_S) > PART_BYTES / THIN_BYTES_S
    assert PART_BYTES <= PART_BYTES_MAX


@pytest.mark.parametrize("size", [0, 1, FIRST_PART_BYTES, FIRST_PART_BYTES + 1, 3 * PART_BYTES])
def test_the_parts_are_the_bytes(size: int) -> None:
    data = bytes(at % 251 for at in range(size))
    first, *rest = split_for_upload(data)
    assert b"".join([first, *rest]) == data
    assert len(first) <= FIRST_PART_BYTES
    assert all(0 < len(part) <= PART_BYTES for part in rest)
