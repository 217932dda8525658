"""The compressor on a card, compared with the limit set by its memory, and with the published operations.

    python -m bench.speed.gpu

The limit is the necessary memory traffic at the rate of a copy on the same card. It reads the gradient and reads and
writes the momentum, 12 bytes a parameter; with preconditioning also the second moment, 20 bytes in total. Our time is
the whole step of a node, from the gradient to the list of sent components. The published operations are those of
`PublishedMomentum`: accumulate the gradient, and extract. They have no preconditioning.

Then a node trains `llama-124m` on the card, in turns with AdamW (see `bench.speed.training`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from bench.speed import report, training
from bench.speed.row import BenchRow
from thinwire.compression.momentum import Momentum
from thinwire.compression.published import PublishedMomentum
from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.exact.tiles import TileLayout

MATRIX = (2048, 4096)
SIZES = (100e6, 1e9)
"""Numbers of parameters, in matrices of that shape."""
K = 32
FLOOR_BYTES = {"none": 12, "adam": 20}
TIMES_FLOOR_WANTED, TIMES_PUBLISHED_WANTED = 3, 10
REPEATS = 10
MICRO_BATCH, TURNS = 16, 8
"""Of training: samples, and turns."""
COPIED_BYTES = 1 << 31
RATE = 1e-3


def card() -> torch.device | None:
    """The GPU, or None without CUDA and ROCm."""
    return torch.device("cuda:0") if torch.cuda.is_available() else None


def rows() -> Iterator[BenchRow]:
    """The rows of this topic. Without a card there are none, and a message says so."""
    device = card()
    if device is None:
        print("there is no card for CUDA or ROCm, so this topic is skipped", file=sys.stderr)
        return
    name = torch.cuda.get_device_name(device)
    yield from rows_on(device, SIZES, name)
    yield from training_on(str(device), name)


def rows_on(
    device: torch.device, sizes: Sequence[float], name: str, shape: tuple[int, int] = MATRIX
) -> Iterator[BenchRow]:
    bandwidth = copy_bandwidth(device)
    topic = f"compress on {name}, copies at {bandwidth / 1e12:.2f} TB/s"
    for size in sizes:
        count = max(1, round(size / (shape[0] * shape[1])))
        layout = TileLayout([Parameter(name=f"w{number}", shape=shape) for number in range(count)])
        gradients = {tensor.name: torch.randn(tensor.shape, device=device) for tensor in layout.tensors}
        published = published_step(layout, gradients, device)
        for precondition, floor_bytes in FLOOR_BYTES.items():
            ours, how = own_step(layout, gradients, precondition, device)
            what = f"{layout.parameters / 1e6:.0f}M parameters, k = {K}, precondition {precondition}, {how}"
            floor = layout.parameters * floor_bytes / bandwidth * 1e3
            limit = TIMES_FLOOR_WANTED * floor
            yield BenchRow(topic, what, ours, floor, "ms", f"{floor_bytes} bytes a parameter, copied", wanted=limit)
            if precondition == "none" and published is not None:
                limit = published / TIMES_PUBLISHED_WANTED
                yield BenchRow(topic, what, ours, published, "ms", "the published operations", wanted=limit)


def training_on(
    device: str, name: str, model: str = training.LARGE, micro_batch: int = MICRO_BATCH, turns: int = TURNS
) -> Iterator[BenchRow]:
    """Tokens a second of a node and of AdamW, both in the precision that a node chooses for the device."""
    found = training.timed(model, turns, "--device", device, "--micro-batch", str(micro_batch))
    topic = f"training {model} on {name}, rounds of {training.ROUND_S:g} s"
    yield from training.rows_from(found, topic, training.ROUND_S)


def own_step(
    layout: TileLayout, gradients: dict[str, Tensor], precondition: str, device: torch.device
) -> tuple[float, str]:
    """Milliseconds of our step, and how it ran."""
    momentum = Momentum(layout, DemoSpec.model_validate({"k": K, "precondition": precondition}), device)
    took = milliseconds(lambda: momentum.accumulate_and_extract(gradients, RATE, 1, K), device)
    return took, "in torch" if momentum.fused is None else "one kernel"


def published_step(layout: TileLayout, gradients: dict[str, Tensor], device: torch.device) -> float | None:
    """Milliseconds of the published operations; None if the card has too little memory for them."""
    try:
        shapes = {tensor.name: tensor.shape for tensor in layout.tensors}
        published = PublishedMomentum(shapes, k=K, device=device)

        def step() -> None:
            published.accumulate(gradients, RATE)
            published.extract()

        return milliseconds(step, device)
    except torch.OutOfMemoryError:
        print(f"too little memory for the published operations on {layout.parameters:,} parameters", file=sys.stderr)
        return None


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, counting reads and writes."""
    source = torch.randn(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / milliseconds(lambda: target.copy_(source), device) * 1e3


def milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """Median of several runs after two warm-up runs, each until the card is finished."""
    times = []
    for turn in range(2 + REPEATS):
        _wait_for(device)
        began = perf_counter()
        work()
        _wait_for(device)
        if turn > 1:
            times.append(perf_counter() - began)
    return median(times) * 1e3


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # shows how the kernel runs, and the alternatives
    if found := list(rows()):
        report.print_table(found, report.machine())


if __name__ == "__main__":
    main()
