"""What follows from the figures of a cell, and the page that tells it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from bench.wide_area.figures import LeftOut, Measured, Outcome
from bench.wide_area.hosts import Link, netem_arguments
from bench.wide_area.report import page, read_cells, write_cells
from bench.wide_area.watch import sample_of
from thinwire_proto.wire.service_pb2 import NodeStatus, StatusReply


def measured(tokens: int, compute_s: float, exchanges: int = 100) -> Measured:
    """A window of four nodes and 100 s."""
    return Measured(
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


def outcome() -> Outcome:
    """The control does 200 rounds of 2,000 tokens, T = 0.5 s; the swarm 190, the baseline 17, X = 5.5 s."""
    return Outcome(
        Link(10, 100, 0.01),
        control=measured(4 * 2000 * 200, 400.0, exchanges=200),
        swarm=measured(4 * 2000 * 190, 376.0, exchanges=190),
        dense=measured(4 * 2000 * 17, 34.0, exchanges=17),
        dense_exchange_s=5.5,
        cores=2,
        dilation=1,
    )


def test_the_gain_is_told_as_a_share_of_the_most_there_is() -> None:
    one = outcome()
    assert one.compute_round_s == pytest.approx(0.5)
    assert one.x_over_t == pytest.approx(11)
    assert one.gain == pytest.approx(190 / 17)
    assert one.gain_share == pytest.approx(190 / 17 / 12)
    assert one.swarm_compute_share == pytest.approx(0.94)
    assert one.dense_compute_share == pytest.approx(0.085)
    assert one.swarm.bytes_each() == pytest.approx((4_000_000 / 760, 8_000_000 / 760))
    assert one.decides
    assert one.reached
    assert not dataclasses.replace(one, dense_exchange_s=4.9).decides


def test_in_dilated_time_nodes_have_more_cores_and_shares_stay() -> None:
    """Twice as long for everything, by the machine's clock: the same world, of machines that are twice as fast."""
    one = dataclasses.replace(outcome(), dilation=2)
    assert (one.cores_each, outcome().cores_each) == (1, 0.5)
    assert one.gain_share == outcome().gain_share
    assert "| 10 Mbit/s, 100 ms, 1%, 1 core a node | 0.25 | 2.75 | 30,400 | 2,720 |" in page([one], [], "")
    assert Link(10, 100, 0.01).dilated(2) == Link(5, 200, 0.01)


def test_the_page_holds_every_cell_and_what_was_left_out_and_comes_back_from_json(tmp_path: Path) -> None:
    left_out = [LeftOut(Link(1000, 20, 0), "left out: for a reason")]
    write_cells([outcome()], left_out, "some machine.", tmp_path)
    read = read_cells(tmp_path / "cells.json")
    assert read == ([outcome()], left_out, "some machine.")
    text = page(*read)
    assert "| 10 Mbit/s, 100 ms, 1%, 0.5 core a node | 0.50 | 5.50 | 15,200 | 1,360 | 11.2× | 12.0× | 93% |" in text
    assert "**94%** of the wall time that the cores leave: reached" in text
    assert "* 1000 Mbit/s, 20 ms, 0%: left out: for a reason" in text
    assert json.loads((tmp_path / "cells.json").read_text())["cells"][0]["derived"]["gain_share"] == pytest.approx(
        outcome().gain_share
    )


def test_two_lines_make_one_path() -> None:
    quality = Link(10, 100, 0.01).quality(limited=True)
    assert 4 * quality.delay_ms == 100
    assert 1 - (1 - quality.loss) ** 2 == pytest.approx(0.01)
    assert quality.queue_bytes == 125_000
    assert Link(10, 20, 0).quality(limited=True).queue_bytes == 64 * 1024
    assert Link(10, 20, 0).quality(limited=False).rate_mbit is None


def test_netem_is_told_the_same_line() -> None:
    limited = netem_arguments(Link(10, 100, 0.01).quality(limited=True))
    assert " ".join(limited) == "netem delay 25ms loss 0.5013% rate 10mbit limit 105"
    unlimited = netem_arguments(Link(1000, 20, 0).quality(limited=False))
    assert " ".join(unlimited) == "netem delay 5ms loss 0.0000% limit 1000000"


def test_a_sample_sums_over_nodes() -> None:
    nodes = [NodeStatus(counted=3, compute_s=1.5, active=True), NodeStatus(counted=4, compute_s=2.0)]
    sample = sample_of(StatusReply(step=4, tokens=1000, nodes=nodes), 7.0)
    assert (sample.step, sample.tokens, sample.counted, sample.compute_s, sample.active) == (4, 1000, 7, 3.5, 1)
