"""A short run of the fuzz target; `make fuzz` gives it a million inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fuzz
from thinwire_proto.errors import PayloadError


def test_damaged_payloads_are_either_read_or_refused() -> None:
    summary = fuzz.fuzz(1500, seed=2)
    assert summary.startswith("1,500 inputs")
    assert " 0 read" not in summary


@pytest.mark.parametrize(
    ("fault", "summary"),
    [
        (lambda data: 1 // 0, "ZeroDivisionError"),
        (lambda data: bytes(1 << 24), "bytes of memory"),
        (lambda data: None, "not of the contract"),
    ],
)
def test_a_faulty_reader_is_detected(fault: object, summary: str) -> None:
    target = replace(fuzz.make_targets()[0], read=fault)  # type: ignore[arg-type]
    with pytest.raises(fuzz.FuzzFailure, match=summary):
        fuzz.try_one_traced(target, b"x")


def test_a_refusal_is_not_a_failure() -> None:
    def refuse(data: bytes) -> object:
        raise PayloadError("no")

    target = replace(fuzz.make_targets()[0], read=refuse)
    assert not fuzz.try_one_traced(target, b"x").read
