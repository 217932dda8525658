"""How long a message takes to arrive, from when its parts come."""

from __future__ import annotations

import pytest

from thinwire_node.gossip.lines.message_times import KEPT, SHORT_BYTES, MessageTimes
from thinwire_proto.gossip.seen_lines import MESSAGE_MS_MAX
from thinwire_proto.wire.parts import FIRST_PART_BYTES


def arrives(times: MessageTimes, size_bytes: int, seconds: float, first_bytes: int = FIRST_PART_BYTES) -> None:
    """A message whose last part comes so long after its first one."""
    times.begin(first_bytes, 100.0)
    times.end(size_bytes, 100.0 + seconds)


def test_the_time_stands_for_the_first_part_too() -> None:
    times = MessageTimes()
    arrives(times, 8 * FIRST_PART_BYTES, 0.7)
    assert times.milliseconds == 800


def test_messages_that_shared_their_line_do_not_count() -> None:
    times = MessageTimes()
    arrives(times, 2 * SHORT_BYTES, 0.875)
    for _ in range(KEPT - 1):
        arrives(times, 2 * SHORT_BYTES, 60.0)
    assert times.milliseconds == 1000
    arrives(times, 2 * SHORT_BYTES, 8.75)  # the line has become slower
    assert times.milliseconds == 10_000


@pytest.mark.parametrize("seconds", [1e7, 1e30])
def test_the_longest_time_fits_the_report(seconds: float) -> None:
    times = MessageTimes()
    arrives(times, 2 * SHORT_BYTES, seconds)
    assert times.milliseconds == MESSAGE_MS_MAX
