"""Tests the command `thinwire-coordinator sample` on an existing run."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from deploy.local_swarm.processes import BIN
from support.coordinator_command import Command
from support.real import PATIENCE_S


def sampled(run: Path, *more: str) -> tuple[str | Path, ...]:
    return "sample", "--state-dir", run, "--prompt", "line", "--length", "20", *more


def test_temperature_0_writes_the_most_likely_bytes(run: Path, command: Command) -> None:
    texts = {command(*sampled(run, "--temperature", "0", "--seed", seed)) for seed in ("1", "2")}
    assert len(texts) == 1
    assert texts.pop().startswith("line")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--seed", str(1 << 64)), ("--seed", str(-(1 << 63) - 1)), ("--prompt", "\udcff"), ("--chat", "\udcff")],
)
def test_a_seed_or_a_text_that_cannot_be_used_is_wrong_usage(option: str, value: str, command: Command) -> None:
    """Seeds of more than 64 bits, and bytes that are not UTF-8, which Python hands on as half characters."""
    assert f"argument {option}: " in command.refused("sample", f"{option}={value}")


def test_a_step_can_be_chosen(run: Path, command: Command) -> None:
    assert command(*sampled(run, "--step", "0")).startswith("line")
    said = command.refused(*sampled(run, "--step", "3"))
    assert "there is no step 3: the ledger holds steps 0 to 2" in said


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
