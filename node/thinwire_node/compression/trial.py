"""Tries the fused kernel on a card, in a process of its own.

    python -m thinwire_node.compression.trial SPEC DEVICE   SPEC: a `DemoSpec` in JSON. Prints a `Verdict` in JSON.

A kernel that reads or writes memory that is not its own makes the card useless to the whole process: each later
operation fails, so there would be nothing left to fall back to. In a process of its own it costs that process alone.
What Triton compiles there is in its cache on disk, where the node finds it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from thinwire_proto.contract import DemoSpec
from thinwire_proto.limits import KERNEL_TRIAL_S


@dataclass(frozen=True)
class Verdict:
    """launch: the index of the fastest launch in `triton.compress.LAUNCHES` that passed, or None. why: in words."""

    launch: int | None
    why: str


def tried(spec: DemoSpec, device: torch.device) -> Verdict:
    """What a process of its own finds. The calling process does nothing on the card."""
    command = [sys.executable, "-m", __name__, spec.model_dump_json(), str(device)]
    return verdict_of(command, KERNEL_TRIAL_S)


def verdict_of(command: Sequence[str], limit_s: float) -> Verdict:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
        )
        return Verdict(**json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return _failed(f"it took longer than {limit_s:.0f} s")
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or [f"it ended with {error.returncode}"]
        return _failed(last[0])
    except (OSError, ValueError, IndexError, TypeError) as error:
        return _failed(f"{type(error).__name__}: {error}")


def _failed(why: str) -> Verdict:
    return Verdict(None, f"operation by operation in torch, because the trial of the fused kernel failed ({why})")


def main() -> None:
    from thinwire_node.compression.fused import decide  # noqa: PLC0415 - it imports this module

    print(json.dumps(asdict(decide(DemoSpec.model_validate_json(sys.argv[1]), torch.device(sys.argv[2])))))


if __name__ == "__main__":
    main()
