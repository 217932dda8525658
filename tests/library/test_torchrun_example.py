"""Runs the example scripts under torchrun: two ranks with gloo."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

RANKS = 2


def test_the_example_keeps_ranks_equal_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Runs four steps, then resumes from the checkpoint in the middle and compares the fingerprints."""
    whole = example("torchrun_demo.py", tmp_path, "--save-every", "2")
    assert "of all 2 ranks are equal bit for bit" in whole
    for path in (tmp_path / "step-00000004").iterdir():
        path.unlink()
    resumed = example("torchrun_demo.py", tmp_path, "--resume")
    assert "step    3" in resumed
    assert "step    2" not in resumed
    assert resumed.splitlines()[-1] == whole.splitlines()[-1]


def test_without_a_centre_a_resumed_run_ends_as_the_uninterrupted_one(tmp_path: Path) -> None:
    """The ranks differ; each one's held-out loss is the same in both runs, and so is that of their mean."""
    whole = held_out(example("torchrun_gossip.py", tmp_path, "--save-every", "2"))
    assert len(whole) == RANKS + 1
    for path in (tmp_path / "step-00000004").iterdir():
        path.unlink()
    assert held_out(example("torchrun_gossip.py", tmp_path, "--resume")) == whole


def test_without_a_centre_matrices_can_take_steps_of_muon(tmp_path: Path) -> None:
    assert len(held_out(example("torchrun_gossip.py", tmp_path, "--muon"))) == RANKS + 1


def held_out(printed: str) -> set[str]:
    """(rank, loss) of each rank, and the loss of the mean."""
    found = re.findall(r"(rank \d): held-out loss (\d+\.\d+), of the mean of all ranks (\d+\.\d+)", printed)
    return {f"{rank} {alone}" for rank, alone, _ in found} | {mean for _, _, mean in found}


def example(name: str, folder: Path, *arguments: str) -> str:
    script = Path(__file__).parents[2] / "examples" / name
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", str(script)]
    few = ["--steps", "4", "--samples", "1", "--checkpoints", str(folder)]
    done = subprocess.run([*command, *few, *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
