"""Tests of what the programs say about wrong numbers on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from thinwire_common.number_arguments import above_zero, count, whole
from thinwire_coordinator.cli.parser import parser

WRONG = [
    "init --nodes abc",
    "init --nodes 0",
    "init --tokens 5Q",
    "init --steps 1.5",
    "init --steps=",
    "init --steps 3e9",
    "init --up x",
    "init --up 1e-320",
    "init --rtt 1e300",
    "init --rtt nan",
    "prepare x --out y --held-out x%",
    "prepare x --out y --held-out 51%",
    "prepare x --out y --bad-max x",
    "prepare x --out y --shard-bytes x",
    "prepare x --out y --train-tokenizer x",
    "prepare x --out y --train-tokenizer 256",
    "sample --length x",
    "sample --temperature x",
    "sample --top-p x",
    "sample --seed x",
    "export --out x --step x",
    "invite --uses x",
    "ban x --for x",
]


def said(capsys: pytest.CaptureFixture[str], read: Callable[[], object]) -> str:
    with pytest.raises(SystemExit):
        read()
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_number_is_refused_in_words(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, lambda: parser().parse_args(line.split()))
    assert "argument --" in text
    assert "must be" in text or "is not" in text
    assert "invalid" not in text


def test_numbers_may_have_units_and_exponents() -> None:
    assert [count(text) for text in ("1", "2e9", "500M", "1.5k", "2B")] == [1, 2 * 10**9, 5 * 10**8, 1500, 2 * 10**9]
    assert [whole(text) for text in ("-3", "0", "12")] == [-3, 0, 12]
    assert above_zero("1e-3") == 0.001
    for text in ("", "k", "inf", "nan", "1e30", "-1"):
        with pytest.raises(argparse.ArgumentTypeError, match="must be a whole number of 1 or more"):
            count(text)
