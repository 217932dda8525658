"""A short run of the fuzz targets, and a replay of the inputs that `make fuzz` kept."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import target as target_module
from fuzz.corpus import kept
from fuzz.parsers import EACH_AT_LEAST, fuzz
from fuzz.target import FuzzFailure, Target, try_one, try_one_traced
from fuzz.targets import all_targets
from fuzz.wire.attack import attack_coordinator
from fuzz.wire.guest import CALLS
from fuzz.wire.hostile import attack_node

TARGETS = all_targets()
EACH = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@EACH
def test_the_first_input_is_read(target: Target) -> None:
    assert try_one(target, target.valid[0]).read
    for data in target.valid[1:]:
        try_one(target, data)


@EACH
def test_kept_inputs_are_read_or_refused(target: Target) -> None:
    for data in kept(target.name):
        try_one_traced(target, data)


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from(TARGETS))
def test_any_bytes_are_read_or_refused(data: bytes, target: Target) -> None:
    try_one(target, data)


@settings(deadline=None)
@given(st.integers(0, 2**63), st.sampled_from(TARGETS))
def test_damaged_inputs_are_read_or_refused(seed: int, target: Target) -> None:
    rng = random.Random(seed)
    data = rng.choice(target.valid)
    for _ in range(rng.randrange(1, 4)):
        data = target.damage(rng, data, target.valid)
    try_one(target, data)


def test_a_run_reaches_readers_and_refusals() -> None:
    summary = fuzz(TARGETS, EACH_AT_LEAST * len(TARGETS), seed=2)
    assert summary.inputs >= EACH_AT_LEAST * len(TARGETS)
    assert summary.refusals > 50
    assert all(one.refused for one in summary.tried.values()), str(summary)
    assert sum(one.read for one in summary.tried.values()) > summary.inputs // 10


@pytest.mark.parametrize(
    ("fault", "summary"),
    [
        (lambda data: 1 // 0, "ZeroDivisionError"),
        (lambda data: bytes(1 << 24), "bytes of memory"),
        (lambda data: None, "cannot be used"),
    ],
)
def test_a_faulty_reader_is_detected(fault: Callable[[bytes], object], summary: str) -> None:
    target = replace(TARGETS[0], read=fault)
    with pytest.raises(FuzzFailure, match=summary):
        try_one_traced(target, b"x")


def test_a_reader_that_hangs_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "HANG_S", 0.01)

    def hang(data: bytes) -> object:
        signal.pause()
        return None

    with pytest.raises(FuzzFailure, match="no answer"):
        try_one(replace(TARGETS[0], read=hang), b"x")


def test_a_coordinator_withstands_a_short_attack(tmp_path: Path) -> None:
    """Over real sockets. `make fuzz` takes longer."""
    summary = attack_coordinator(tmp_path, 3000, seed=3)
    assert not summary.found, str(summary)
    assert summary.tally.inputs >= 3000
    assert {label for label, _ in summary.tally.answers} >= {*CALLS, "frames", "http"}
    assert 0 < summary.peak_rss_bytes <= summary.bound_bytes


def test_a_node_withstands_a_coordinator_that_lies(tmp_path: Path) -> None:
    summary = attack_node(tmp_path, 20, seed=3)
    assert not summary.found, str(summary)
    assert summary.answers.total() >= 20
