"""Measures what `thinwire-node start --compile` gains: passes of one model with and without compiled stages, in turns.

    python -m bench.speed.compiled [--model byte-1m] [--samples 4] [--threads 1] [--turns 25] [--device cpu]

The medians of the ratios: of the time that a pass takes and, on a processor, of the processor's. `compiling` is the
time until the first pass, with an empty cache.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from bench.markdown import table
from thinwire_node.training.compute import TorchCompute, set_up_compiler
from thinwire_proto.activations import sample_of
from thinwire_proto.models import PRESETS
from thinwire_proto.task import Batch, task_of


def measure(model: str, samples: int, turns: int, device: str) -> tuple[float, float, float]:
    """Seconds of compiling, and how many times faster a compiled pass is: by the clock, and by the processor."""
    spec, on = PRESETS[model], torch.device(device)
    task = task_of(spec)
    parameters = {name: tensor.to(on) for name, tensor in task.initial_state(1).items()}
    plain, compiled = TorchCompute(task, on), TorchCompute(task, on, compiles=True)
    plain.use(parameters)
    began = time.perf_counter()
    if reason := compiled.compile(parameters, sample_of(spec)):
        raise SystemExit(f"not compiled: {reason}")
    compiling_s = time.perf_counter() - began
    ratios = []
    for turn in range(turns):
        text = torch.randint(
            0, spec.vocabulary, (samples, spec.context + 1), generator=torch.Generator().manual_seed(turn)
        )
        (first, first_cpu), (second, second_cpu) = _timed(plain, (text,)), _timed(compiled, (text,))
        ratios.append((first / second, first_cpu / second_cpu))
    return compiling_s, *(statistics.median(column) for column in zip(*ratios, strict=True))


def _timed(compute: TorchCompute, batch: Batch) -> tuple[float, float]:
    began, began_cpu = time.perf_counter(), time.process_time()
    loss, _ = compute.gradients(batch)
    loss.item()  # a card has finished
    return time.perf_counter() - began, time.process_time() - began_cpu


def main() -> None:
    parser = argparse.ArgumentParser(description="Passes with and without torch.compile.")
    parser.add_argument("--model", choices=PRESETS, default="byte-1m", metavar="PRESET")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        set_up_compiler(Path(folder))
        compiling_s, speed, by_cpu = measure(options.model, options.samples, options.turns, options.device)
    head = ("model", "threads", "samples", "times as fast", "by processor time", "compiling")
    row = (
        options.model,
        str(options.threads),
        str(options.samples),
        f"{speed:.2f}",
        f"{by_cpu:.2f}",
        f"{compiling_s:.0f} s",
    )
    print(table(head, [row]))


if __name__ == "__main__":
    main()
