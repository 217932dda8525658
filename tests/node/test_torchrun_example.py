"""Runs the example script under torchrun: two ranks with gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RANKS = 2


def test_the_example_keeps_ranks_equal_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Runs four steps, then resumes from the checkpoint in the middle and compares the fingerprints."""
    whole = example(tmp_path, "--save-every", "2")
    assert "of all 2 ranks are equal bit for bit" in whole
    for path in (tmp_path / "step-00000004").iterdir():
        path.unlink()
    resumed = example(tmp_path, "--resume")
    assert "step    3" in resumed
    assert "step    2" not in resumed
    assert resumed.splitlines()[-1] == whole.splitlines()[-1]


def example(folder: Path, *arguments: str) -> str:
    script = Path(__file__).parents[2] / "examples" / "torchrun_demo.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", str(script)]
    few = ["--steps", "4", "--samples", "1", "--checkpoints", str(folder)]
    done = subprocess.run([*command, *few, *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
