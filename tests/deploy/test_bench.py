"""`make bench`: each row has a baseline, and reports bytes and work as they really are. Tests measure no times."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.speed import fanout, report, rounds, sizes, speeds, timing, update
from bench.speed.memory import RUN, SHAPE, swarm_peaks
from bench.speed.peaks import status_bytes
from bench.speed.row import BenchRow
from bench.speed.synthetic import contract_of, uniform_votes
from deploy.local_swarm.daemon_log import events
from thinwire_proto.all_reduce import ring_bytes
from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merged, merge
from thinwire_proto.wire.codec import decode_update, decode_votes, encode_update, encode_votes
from thinwire_proto.wire.parts import PART_BYTES

SMALL = (Parameter(name="w", shape=(128, 192)),)
MIXED = (Parameter(name="w", shape=(128, 192)), Parameter(name="b", shape=(100,)))
DOCS = Path(__file__).parents[2] / "docs"
LINUX = sys.platform == "linux"


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ENOUGH_S", 0.0)


def small_rows() -> list[BenchRow]:
    found = [*sizes.bits_rows(SMALL, MIXED, numbers=(4, 32)), *sizes.rounds_rows(SMALL, (1, 4))]
    return [*found, *speeds.codec_rows(SMALL), *update.update_rows((1, 2), (128, 192))]


def test_every_row_has_a_ratio_and_json_and_table_agree(tmp_path: Path) -> None:
    found, about = small_rows(), report.machine()
    path = tmp_path / "runs" / "bench.json"
    report.write_json(found, about, path)
    written = json.loads(path.read_text())
    table = report.markdown(found, about).splitlines()
    assert len(written["rows"]) == len(found)
    for row, line in zip(written["rows"], (line for line in table if "× |" in line), strict=True):
        ours, baseline = row["ours"], row["baseline"]
        assert row["ratio"] == pytest.approx(ours / baseline if row["better"] == "more" else baseline / ours)
        assert 0 <= row["ratio"] < math.inf
        for cell in (row["what"], row["baseline_name"], f"{report.number(ours)} {row['unit']}"):
            assert f"| {cell} |" in line
        assert f"| {report.number(row['ratio'])}× |" in line
    assert report.read_json(path) == (found, about)
    report.print_table(found, about)


def test_bits_a_component_include_the_whole_message() -> None:
    layout = layout_of(SMALL)
    payload = encode_votes(uniform_votes(layout, 32, seed=32), layout)
    count = len(decode_votes(payload, layout, 32))
    assert count == 32 * layout.tiles
    whole = sizes.component_bits(SMALL, 32) * count / 8
    assert whole == pytest.approx(sizes.contribution_bytes(payload))
    assert len(payload) + 32 < whole < len(payload) + 128  # the header; the session alone has 32 bytes
    parts = sizes.contribution_bytes(bytes(3 << 20)) - (3 << 20)
    assert 32 < parts < 128 + 8 * (1 + (3 << 20) // PART_BYTES)  # one header for any number of parts


def test_bytes_of_a_round_are_those_of_the_codec() -> None:
    contract, layout = contract_of(SMALL, DemoSpec(k=8)), layout_of(SMALL)
    sent, received = sizes.round_bytes(contract, 3)
    all_votes = [uniform_votes(layout, 8, seed) for seed in range(3)]
    assert sent * layout.parameters == sizes.contribution_bytes(encode_votes(all_votes[0], layout))
    merged = merge([(votes, 8) for votes in all_votes], layout.components)
    body = encode_update(Update(1000, learning_rate(contract.schedule, 100), 1.0, merged), layout)
    assert received * layout.parameters == sizes.update_bytes(body, 3) > len(body)
    assert sizes.update_bytes(body, 64) - sizes.update_bytes(body, 3) > 61 * (16 + 32)  # names of the counted nodes
    over = [sizes.update_bytes(bytes(size), 3) - size for size in (1 << 20, 3 << 20)]
    assert over[1] - over[0] < 2 * 16  # two more parts, and the row only in the first
    assert (ring_bytes(1), ring_bytes(4)) == (0, 12)


def test_baselines_do_the_same_work() -> None:
    layout = layout_of(SMALL)
    all_votes = [uniform_votes(layout, 32, seed) for seed in range(3)]
    for votes in all_votes:
        again = speeds.unpack_12_bits(*speeds.pack_12_bits(votes), 32)
        assert np.array_equal(again.components, votes.components)
        assert np.array_equal(again.positive, votes.positive)
    merged = merge([(votes, 1) for votes in all_votes], layout.components)
    plain = speeds.merge_in_torch(all_votes, layout.components)
    assert np.array_equal(np.flatnonzero(plain), merged.components)
    assert np.array_equal(plain[merged.components], merged.values)
    update = Update(0, 0.5, 1.0, merged)
    again_merged = decode_update(encode_update(update, layout), layout).merged
    assert isinstance(again_merged, Merged)
    assert np.array_equal(again_merged.values, merged.values)


def test_the_page_in_docs_matches_its_json_and_explains_each_topic() -> None:
    page = (DOCS / report.PAGE_NAME).read_text()
    found, about = report.read_json(DOCS / report.JSON_NAME)
    assert report.markdown(found, about) in page
    for topic in {row.topic for row in found}:
        assert f"**{topic.partition(',')[0]}" in page.lower()


def test_rounds_of_a_real_coordinator_are_measured() -> None:
    sealed, last = rounds.members_rows(3, 0.3, rounds=1, model=rounds.SMALL)
    for row in (sealed, last):
        assert row.ours > 0
        assert row.baseline > 0


def test_fan_out_is_compared_with_raw_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "REPEATS", 1)
    (row,) = fanout.rows(((2, 1 << 20, 2),))
    assert min(row.ours, row.baseline) > 0
    assert row.wanted == pytest.approx(0.7 * row.baseline)


@pytest.mark.skipif(not LINUX, reason="peak memory is read from /proc")
def test_peak_memory_of_node_and_coordinator(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text(RUN.format(model=SHAPE.format(width=64, heads=1, hidden=64), steps=4))
    node, coordinator = swarm_peaks(tmp_path / "swarm", run)
    log = (tmp_path / "swarm" / "coordinator.log").read_text()
    assert [event["step"] for event in events(log, "coordinator.snapshot_written")][-1] == 4
    for peak in (node, coordinator):  # torch alone takes as much
        assert 64 << 20 < peak < 4 << 30
    assert status_bytes("VmHWM", 1 << 30) == 0  # no process has this number
