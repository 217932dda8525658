"""The figures derived from a cell, and the page that reports them."""

from __future__ import annotations

import dataclasses

import pytest

from bench.wide_area.figures import CellResult, SkippedCell, SystemFigures
from bench.wide_area.hosts import LinkSpec, netem_arguments
from bench.wide_area.report import page
from bench.wide_area.watch import sample_of
from bench.wide_area.workload import MICRO_BATCH, round_samples, run_toml
from thinwire_proto.wire.service_pb2 import NodeStatus, StatusReply


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


def test_what_is_kept_for_the_coordinator_is_made_up_for_by_dilation() -> None:
    one = dataclasses.replace(cell_result(), dilation=1.25, nodes_share=0.8)
    assert one.cores_each == 0.5
    assert "1%, 0.5 core per node | 0.40 | 4.40 | 19,000 | 1,700 |" in page([one], [], "")


def test_windows_of_one_system_count_as_one() -> None:
    before, after = figures(1000, 10.0, exchanges=0), figures(3000, 50.0, exchanges=0)
    both = before + after
    assert (both.nodes, both.tokens, both.wall_s) == (4, 4000, 200.0)
    assert both.tokens_s == (before.tokens_s + after.tokens_s) / 2
    assert both.compute_share == pytest.approx((before.compute_share + after.compute_share) / 2)


def test_page_has_measured_and_skipped_cells() -> None:
    text = page([cell_result()], [SkippedCell(LinkSpec(1000, 20, 0), "skipped: for a reason")], "some machine.")
    assert "| 10 Mbit/s, 100 ms, 1%, 0.5 core per node | 0.50 | 5.50 | 15,200 | 1,360 | 11.2× | 12.0× | 93% |" in text
    assert "| 11.0 | 93% | 94% | met |" in text
    assert "* 1000 Mbit/s, 20 ms, 0%: skipped: for a reason" in text


@pytest.mark.parametrize(("samples", "dilation", "wanted"), [(9, 1.25, 12), (24, 1.25, 30), (24, 5, 120), (0.1, 1, 3)])
def test_a_round_has_whole_micro_batches(samples: float, dilation: float, wanted: int) -> None:
    assert round_samples(samples, dilation) == wanted
    assert wanted % MICRO_BATCH == 0
    assert f"samples = {wanted}\n" in run_toml(wanted)


def test_two_lines_form_one_path() -> None:
    quality = LinkSpec(10, 100, 0.01).quality(limited=True)
    assert 4 * quality.delay_ms == 100
    assert 1 - (1 - quality.loss) ** 2 == pytest.approx(0.01)
    assert quality.queue_bytes == 125_000
    assert LinkSpec(10, 20, 0).quality(limited=True).queue_bytes == 64 * 1024
    assert LinkSpec(10, 20, 0).quality(limited=False).rate_mbit is None


def test_netem_arguments_describe_the_same_line() -> None:
    limited = netem_arguments(LinkSpec(10, 100, 0.01).quality(limited=True))
    assert " ".join(limited) == "netem delay 25ms loss 0.5013% rate 10mbit limit 105"
    unlimited = netem_arguments(LinkSpec(1000, 20, 0).quality(limited=False))
    assert " ".join(unlimited) == "netem delay 5ms loss 0.0000% limit 1000000"


def test_sample_sums_over_nodes() -> None:
    nodes = [NodeStatus(counted=3, compute_s=1.5, active=True), NodeStatus(counted=4, compute_s=2.0)]
    sample = sample_of(StatusReply(step=4, tokens=1000, nodes=nodes), 7.0)
    assert (sample.step, sample.tokens, sample.counted, sample.compute_s, sample.active) == (4, 1000, 7, 3.5, 1)
