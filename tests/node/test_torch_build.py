"""A node on the CPU names the torch that would see the machine's card. The drivers' programs are scripts on PATH."""

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path

import pytest
import torch

from thinwire_node.machine import RealMachine
from thinwire_node.training.device import unseen_card

NVIDIA = """#!/bin/sh
if [ "$1" = -L ]; then echo "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1)"; else echo "| CUDA Version: {version} |"; fi
"""
ROCM = """#!/bin/sh
echo "GPU[0] : Card Series:  AMD Radeon RX 7900 XTX"
"""
XPU = """#!/bin/sh
echo "| 0 | Device Name: Intel(R) Arc(TM) A770 Graphics |"
"""
DEAD = """#!/bin/sh
echo "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1)"; exit 9
"""

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() or torch.xpu.is_available() or sys.platform != "linux", reason="torch sees a card here"
)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, but for /bin."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    return folder


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("program", "text", "card", "build"),
    [
        ("nvidia-smi", NVIDIA.format(version="13.1"), "NVIDIA GeForce RTX 4090", "cu130"),
        ("nvidia-smi", NVIDIA.format(version="12.4"), "NVIDIA GeForce RTX 4090", "cu126"),
        ("rocm-smi", ROCM, "AMD Radeon RX 7900 XTX", "rocm6.4"),
        ("xpu-smi", XPU, "Intel(R) Arc(TM) A770 Graphics", "xpu"),
    ],
)
def test_the_remedy_is_a_command_for_this_python(
    program: str, text: str, card: str, build: str, programs: Path
) -> None:
    put(programs, program, text)
    found = unseen_card()
    assert found is not None
    assert found.name == card
    command = shlex.split(found.remedy.removeprefix("to use it, run: "))
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert command[-1] == f"https://download.pytorch.org/whl/{build}"


def test_an_old_driver_comes_first(programs: Path) -> None:
    put(programs, "nvidia-smi", NVIDIA.format(version="11.4"))
    assert "update its driver" in str(unseen_card())


@pytest.mark.parametrize("text", [DEAD, "no program"], ids=["fails", "is no program"])
def test_a_driver_that_does_not_work_shows_no_card(text: str, programs: Path) -> None:
    put(programs, "nvidia-smi", text)
    assert unseen_card() is None


@pytest.mark.parametrize(("device", "told"), [("auto", 1), ("cpu", 0)])
def test_a_node_tells_it_unless_the_cpu_was_chosen(
    device: str, told: int, programs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(programs, "nvidia-smi", NVIDIA.format(version="13.0"))
    with caplog.at_level(logging.WARNING, logger="thinwire.node"):
        RealMachine(tmp_path, device)
    assert sum("RTX 4090" in record.getMessage() for record in caplog.records) == told
