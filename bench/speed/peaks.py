"""Peak memory of one task in a separate process: `python -m bench.speed.peaks TASK RUN.toml`.

`adamw` trains the run's model with plain AdamW; `merge` adds up the contributions of four nodes. Prints the bytes. The
figures are available only on Linux.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch

from bench.speed.synthetic import contract_of, model_parameters, uniform_votes
from thinwire_coordinator.cli.run_file import read_run
from thinwire_proto.contract import RunSpec
from thinwire_proto.exact.magnitudes import merger_of
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.freed_memory import give_back
from thinwire_proto.models import initial_state
from thinwire_proto.task import task_of
from thinwire_proto.wire.codec import decode_votes, encode_votes

NODES = 4
STEPS = 3
KIB = 1024


def status_bytes(name: str, pid: int | str = "self") -> int:
    """VmHWM (peak) or VmRSS (resident now) of a process; 0 if it has ended."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) * KIB if found else 0


def adamw(run: RunSpec) -> int:
    """Peak of the process with parameters, gradients and both moments in float32, and the batch of a node."""
    model = task_of(run.model).model("cpu")
    first = initial_state(run.model, 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(first.pop(name))
    optimizer = torch.optim.AdamW([parameter for _, parameter in model.named_parameters()], lr=1e-3)
    batch = torch.randint(0, run.model.vocabulary, (run.round.samples, run.model.context + 1))
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.autograd.backward(model.loss(batch))
        optimizer.step()
    return status_bytes("VmHWM")


def merge(run: RunSpec) -> int:
    """Peak of decoding and merging, without the payloads."""
    contract = contract_of(model_parameters(run.model), run.demo)
    layout, k = layout_of(contract.parameters), run.demo.k_of_round(NODES)
    payloads = [encode_votes(uniform_votes(layout, k, seed), layout) for seed in range(NODES)]
    give_back()  # else the merge would use what the encoder has freed, and how much that is varies
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = status_bytes("VmRSS")
    merger = merger_of(contract, layout, step=0)
    for payload in payloads:
        merger.add(decode_votes(payload, layout, k), run.round.weight_max)
    merged = merger.merged()
    assert len(merged)
    return status_bytes("VmHWM") - before


if __name__ == "__main__":
    print({"adamw": adamw, "merge": merge}[sys.argv[1]](read_run(Path(sys.argv[2]))))
