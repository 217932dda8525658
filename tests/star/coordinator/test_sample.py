"""Tests the command `thinwire-coordinator sample` on an existing run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local_swarm.processes import BIN
from support.real import PATIENCE_S
from support.sealed_run import make_run
from thinwire_coordinator.__main__ import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_run(folder, 2)
    return folder


def sampled(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    command = ["thinwire-coordinator", "sample", "--state-dir", str(run), "--prompt", "line", "--length", "20"]
    monkeypatch.setattr(sys, "argv", [*command, *more])
    main()
    return capsys.readouterr().out


def test_temperature_0_writes_the_most_likely_bytes(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {sampled(run, monkeypatch, capsys, "--temperature", "0", "--seed", seed) for seed in ("1", "2")}
    assert len(texts) == 1
    assert texts.pop().startswith("line")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--seed", str(1 << 64)), ("--seed", str(-(1 << 63) - 1)), ("--prompt", "\udcff"), ("--chat", "\udcff")],
)
def test_a_seed_or_a_text_that_cannot_be_used_is_wrong_usage(
    option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds of more than 64 bits, and bytes that are not UTF-8, which Python hands on as half characters."""
    monkeypatch.setattr(sys, "argv", ["thinwire-coordinator", "sample", f"{option}={value}"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"argument {option}: " in capsys.readouterr().err


def test_a_step_can_be_chosen(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert sampled(run, monkeypatch, capsys, "--step", "0").startswith("line")
    with pytest.raises(SystemExit):
        sampled(run, monkeypatch, capsys, "--step", "3")
    assert "there is no step 3: the ledger holds steps 0 to 2" in capsys.readouterr().err


@pytest.mark.usefixtures("usual_signals")
def test_sample_streams_and_ends_quietly(run: Path) -> None:
    command = [str(BIN / "thinwire-coordinator"), "sample", "--state-dir", str(run), "--length", "1000000"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, errors="replace") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(20).startswith("def ")  # it streams: the whole text would take minutes
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == ""
        assert process.wait(timeout=PATIENCE_S) == 130
