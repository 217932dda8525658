"""Tests the command `thinwire-coordinator evaluate` on an existing run."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from support.sealed_run import make_run
from support.small import small_corpus
from thinwire_coordinator.__main__ import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_run(folder, 2)
    return folder


def evaluated(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *more: str
) -> list[dict[str, float]]:
    monkeypatch.setattr(sys, "argv", ["thinwire-coordinator", "evaluate", "--state-dir", str(run), "--json", *more])
    main()
    found: list[dict[str, float]] = json.loads(capsys.readouterr().out)
    return found


def test_a_text_has_the_loss_of_the_held_out_set_that_it_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = b"".join(file.content for file in small_corpus().files if file.held_out)
    (of_set,) = evaluated(run, monkeypatch, capsys, "--samples", "100000")
    file = tmp_path / "text"
    file.write_bytes(held_out[: int(of_set["tokens"]) + 1])
    both = ("--samples", "100000", "--set", str(of_set["name"]), "--text", str(file))
    of_set, of_text = evaluated(run, monkeypatch, capsys, *both)
    assert of_text["tokens"] == of_set["tokens"]
    assert of_text["loss"] == pytest.approx(of_set["loss"], rel=1e-5)
    assert of_text["bits_per_byte"] == pytest.approx(of_text["loss"] / math.log(2), rel=1e-3)


def test_a_step_is_what_it_was(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    losses = [evaluated(run, monkeypatch, capsys, "--step", str(step))[0] for step in (0, 2)]
    assert [found["step"] for found in losses] == [0, 2]
    assert losses[0]["loss"] != losses[1]["loss"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--set", "nothing"), "there is no held-out set 'nothing'; there are"),
        (("--text", "/nowhere"), "/nowhere: cannot be read"),
        (("--text", "/dev/null"), "is empty"),
        (("--step", "9"), "there is no step 9"),
    ],
)
def test_what_cannot_be_evaluated_is_said(
    more: tuple[str, ...],
    says: str,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["thinwire-coordinator", "evaluate", "--state-dir", str(run), *more])
    with pytest.raises(SystemExit):
        main()
    assert says in capsys.readouterr().err
