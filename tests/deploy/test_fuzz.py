"""The fuzz target, briefly; `make fuzz` gives it a million inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fuzz
from thinwire_proto.errors import PayloadError


def test_damaged_payloads_are_read_or_refused_and_nothing_else() -> None:
    said = fuzz.fuzz(4000, seed=2)
    assert said.startswith("4,000 inputs")
    assert " 0 read" not in said


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda data: 1 // 0, "ZeroDivisionError"),
        (lambda data: bytes(1 << 24), "bytes of memory"),
        (lambda data: None, "not of the contract"),
    ],
)
def test_a_reader_with_a_fault_is_found_out(fault: object, said: str) -> None:
    target = replace(fuzz.make_targets()[0], read=fault)  # type: ignore[arg-type]
    with pytest.raises(fuzz.Broken, match=said):
        fuzz.try_one_traced(target, b"x")


def test_a_refusal_is_no_fault() -> None:
    def refuse(data: bytes) -> object:
        raise PayloadError("no")

    target = replace(fuzz.make_targets()[0], read=refuse)
    assert not fuzz.try_one_traced(target, b"x").read
