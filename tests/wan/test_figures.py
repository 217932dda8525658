"""The figures derived from a cell, and the page that reports them."""

from __future__ import annotations

import dataclasses

import pytest

from bench.wide_area.figures import CellResult, SkippedCell, SystemFigures
from bench.wide_area.hosts import LinkSpec
from bench.wide_area.report import page


def figures(tokens: int, compute_s: float, exchanges: int = 100) -> SystemFigures:
    """Figures of four nodes in a window of 100 s."""
    return SystemFigures(
        nodes=4,
        wall_s=100.0,
        tokens=tokens,
        exchanges=exchanges,
        contributions=4 * exchanges,
        compute_s=compute_s,
        sent_bytes=4_000_000,
        received_bytes=8_000_000,
        line_cpu_s=10.0,
    )


def cell_result() -> CellResult:
    """The control does 200 rounds of 2,000 tokens with T = 0.5 s; the swarm does 190, and the baseline 17 with X = 5.5
    s."""
    return CellResult(
        LinkSpec(10, 100, 0.01),
        control=figures(4 * 2000 * 200, 400.0, exchanges=200),
        swarm=figures(4 * 2000 * 190, 376.0, exchanges=190),
        ddp=figures(4 * 2000 * 17, 34.0, exchanges=17),
        ddp_exchange_s=5.5,
        cores=2,
        dilation=1,
    )


def test_gain_is_a_share_of_the_largest_possible_gain() -> None:
    one = cell_result()
    assert one.compute_round_s == pytest.approx(0.5)
    assert one.x_over_t == pytest.approx(11)
    assert one.gain == pytest.approx(190 / 17)
    assert one.gain_share == pytest.approx(190 / 17 / 12)
    assert one.swarm_compute_share == pytest.approx(0.94)
    assert one.swarm.bytes_each() == pytest.approx((4_000_000 / 760, 8_000_000 / 760))
    assert one.decides
    assert one.reached
    assert not dataclasses.replace(one, ddp_exchange_s=4.9).decides


def test_dilation_gives_nodes_more_cores_and_keeps_shares() -> None:
    """By the machine's clock everything takes twice as long: the same world, with machines that are twice as fast."""
    one = dataclasses.replace(cell_result(), dilation=2)
    assert (one.cores_each, cell_result().cores_each) == (1, 0.5)
    assert one.gain_share == cell_result().gain_share
    assert "| 10 Mbit/s, 100 ms, 1%, 1 core per node | 0.25 | 2.75 | 30,400 | 2,720 |" in page([one], [], "")
    assert LinkSpec(10, 100, 0.01).dilated(2) == LinkSpec(5, 200, 0.01)


def test_page_has_measured_and_skipped_cells() -> None:
    text = page([cell_result()], [SkippedCell(LinkSpec(100, 20, 0), "failed: for a reason")], "some machine.")
    assert "| 10 Mbit/s, 100 ms, 1%, 0.5 core per node | 0.50 | 5.50 | 15,200 | 1,360 | 11.2× | 12.0× | 93% |" in text
    assert "| 11.0 | 93% | 94% | met |" in text
    assert "* 100 Mbit/s, 20 ms, 0%: failed: for a reason" in text
