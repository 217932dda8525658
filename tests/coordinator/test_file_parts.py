"""Parts of a file are as large as a line takes in about a second, and small until it has shown how quick it is."""

from __future__ import annotations

from thinwire_coordinator.hall.rpc.files import FILE_PART_BYTES, LEAST_BYTES, PartSizes
from thinwire_node.session.download import BYTES_LEAST
from thinwire_proto.limits import FETCH_SILENT_S

WINDOW_BYTES = 64 << 10
"""A line takes so many bytes at once, before any of them has arrived."""


def sent_over(bytes_s: float, total: int) -> list[int]:
    """The sizes of the parts of a file on a line of this rate."""
    sizes, parts, sent = PartSizes(), list[int](), 0
    while sent < total:
        parts.append(sizes.bytes)
        waiting = max(0, sent + sizes.bytes - WINDOW_BYTES) - max(0, sent - WINDOW_BYTES)
        sent += sizes.bytes
        sizes.took(waiting / bytes_s)
    return parts


def test_on_a_thin_line_a_node_sees_a_part_before_it_gives_up() -> None:
    for rate in (BYTES_LEAST / FETCH_SILENT_S, 64_000 / 8, 100_000 / 8):
        assert set(sent_over(rate, 1 << 20)) == {LEAST_BYTES}


def test_on_a_line_that_becomes_thin_parts_shrink() -> None:
    sizes = PartSizes()
    for _ in range(40):
        sizes.took(0.0)
    assert sizes.bytes == FILE_PART_BYTES
    for _ in range(4):
        sizes.took(5.0)
    assert sizes.bytes == LEAST_BYTES
