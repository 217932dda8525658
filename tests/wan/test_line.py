"""The emulated line: rate, delay, loss and queue, with the time passed as an argument."""

from __future__ import annotations

import random

import pytest

from bench.wide_area.line import AccessLine, LineQuality, StarTopology

PACKET = b"\x45" + bytes(999)


def addressed(host: int, size: int = 1000) -> bytes:
    """An IPv4 packet for a host, with the fields that the star reads."""
    return b"\x45" + bytes(18) + bytes([host + 1]) + bytes(size - 20)


def test_single_packet_takes_transmission_time_plus_delay() -> None:
    line = AccessLine(LineQuality(rate_mbit=8, delay_ms=50, loss=0, queue_bytes=10_000), seed=1)
    assert line.offer(PACKET, 10.0)
    assert line.next_s == pytest.approx(10.0 + 0.001 + 0.05)  # 1000 bytes at 1 MB/s
    assert line.due(10.0505) == []
    assert [packet for _, packet in line.due(10.052)] == [PACKET]
    assert line.next_s is None


def test_full_queue_drops_packets_until_it_drains() -> None:
    line = AccessLine(LineQuality(rate_mbit=8, delay_ms=0, loss=0, queue_bytes=3000), seed=1)
    assert [line.offer(PACKET, 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert line.tally.dropped == 2
    assert line.offer(PACKET, 0.001)  # one is out by then
    assert not line.offer(PACKET, 0.001)


@pytest.mark.parametrize("load", [0.3, 0.9, 3.0])
def test_line_never_exceeds_its_rate(load: float) -> None:
    quality = LineQuality(rate_mbit=8, delay_ms=20, loss=0, queue_bytes=20_000)
    line, rng, now_s, sizes = AccessLine(quality, seed=1), random.Random(2), 0.0, []
    for _ in range(5000):
        size = rng.randint(40, 1500)
        sizes.append(size)
        now_s += size / (load * 1_000_000) * rng.expovariate(1)
        line.offer(bytes(size), now_s)
    found = line.due(1e9)
    assert line.tally.carried_bytes == sum(len(packet) for _, packet in found)
    assert line.tally.carried_bytes <= 1_000_000 * (found[-1][0] - found[0][0]) + 1500
    assert line.tally.carried + line.tally.dropped == len(sizes)
    if load > 1:
        assert line.tally.carried_bytes > 0.97 * 1_000_000 * now_s  # and the rate is fully used
    # no packet waits longer than a full queue takes to drain
    assert all(arrival_s <= now_s + 0.02 + 0.02 for arrival_s, _ in found)


def test_path_through_the_star_is_one_line_up_and_one_down() -> None:
    quality = LineQuality(rate_mbit=8, delay_ms=25, loss=0, queue_bytes=100_000)
    star = StarTopology([quality] * 3, [quality] * 3, seed=1)
    star.offer(0, addressed(2), 0.0)
    assert star.next_s == pytest.approx(0.026)
    assert star.due(0.03) == []
    assert star.next_s == pytest.approx(0.052)
    [(arrival_s, host, packet)] = star.due(0.06)
    assert arrival_s == pytest.approx(0.052)
    assert (host, packet) == (2, addressed(2))
    assert star.next_s is None
