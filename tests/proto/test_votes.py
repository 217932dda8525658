"""Merging gives the same bits in any order and through any tree."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire_proto.exact.votes import nonzero_positions


@given(st.integers(0, 400), st.sampled_from([0.0, 0.01, 0.09, 0.11, 0.5, 1.0]), st.sampled_from([np.int16, np.int64]))
@settings(max_examples=40, deadline=None)
def test_nonzero_positions_are_found_at_any_density(length: int, share: float, kind: type) -> None:
    rng = np.random.default_rng(length)
    part: npt.NDArray[Any] = np.where(rng.random(length) < share, rng.integers(1, 100, length) << 8, 0).astype(kind)
    assert nonzero_positions(part).tolist() == [position for position, value in enumerate(part.tolist()) if value]


MERGE_MUCH = """
import pathlib, sys
import numpy as np
from thinwire_proto.contract import Parameter
from thinwire_proto.exact.topk import TopkSelection
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.votes import Merger, Votes, merge

def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

tiles, k, nodes = 64 * 64, 32, 8
layout = TileLayout([Parameter(name="m", shape=(64 * 64, 64 * 64))])
rng = np.random.default_rng(1)
contributions = []
for _ in range(nodes):
    components = np.arange(0, layout.components, 4096 // k) + rng.integers(0, 4096 // k, tiles * k)
    contributions.append(Votes(components, rng.random(tiles * k) < 0.5))
small = [Votes(votes.components[:999], votes.positive[:999]) for votes in contributions]
merge([(votes, 1) for votes in small], 1 << 20)  # load and cache everything once
before = peak()
merger = Merger(layout.components, TopkSelection(layout, 64, 1) if sys.argv[1] == "64" else None)
for votes in contributions:
    merger.add(votes, 8)
merged = merger.merged()
print((peak() - before) / layout.components, len(merged) / tiles)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from Linux's /proc")
@pytest.mark.parametrize("update_topk", [0, 64])
def test_merging_takes_at_most_three_bytes_a_parameter(update_topk: int) -> None:
    """Runs in its own process with 17 million parameters; counts the sum, the working memory and the merged votes."""
    command = [sys.executable, "-c", MERGE_MUCH, str(update_topk)]
    bytes_a_parameter, a_tile = map(float, subprocess.check_output(command, text=True).split())
    assert 2 < bytes_a_parameter < 3
    assert a_tile == 64 if update_topk else 200 < a_tile < 256
