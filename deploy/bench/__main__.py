"""How small and how fast, each row beside a baseline measured in the same run. Writes runs/bench.json as well.

Baselines: what the reference implementation of DeMo sends (an int64 index and a float32 value a component), the same
work done in the plainest way that torch offers, and one copy of the parameters in memory.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from thinwire_node.momentum import Momentum
from thinwire_proto.codec import Update, decode_votes, encode_update, encode_votes
from thinwire_proto.contract import Contract, DataSpec, Parameter, RunSpec
from thinwire_proto.replica import Replica
from thinwire_proto.tiles import TileLayout
from thinwire_proto.transform import float_basis
from thinwire_proto.votes import Merger, Votes, merge

ROWS, COLUMNS = 2048, 4096
K = 32
NODES = 4
REPEATS = 5
REFERENCE_BITS = 96  # int64 index, float32 value
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Measurement:
    what: str
    ours: float
    baseline: float
    unit: str
    baseline_name: str

    @property
    def ratio(self) -> float:
        """How many times less than the baseline."""
        return self.baseline / self.ours


def milliseconds(work: Callable[[], object]) -> float:
    """Median of several runs, after one to warm up."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    contract = _contract()
    layout = TileLayout(contract.parameters)
    votes = [_votes(layout, seed) for seed in range(NODES)]
    found = [*_sizes(layout, votes), *_times(contract, layout, votes)]

    table = Table(
        box=None,
        padding=(0, 2),
        title_justify="left",
        title=f"{ROWS} × {COLUMNS} matrix, k = {K}, {NODES} nodes, {torch.get_num_threads()} threads",
    )
    for title in ("what", "thinwire", "baseline", "", "times less"):
        table.add_column(title, justify="left" if title in ("what", "") else "right")
    for row in found:
        ours, baseline = (f"{value:,.3g} {row.unit}" for value in (row.ours, row.baseline))
        table.add_row(row.what, ours, baseline, row.baseline_name, f"{row.ratio:.2f}×")
    Console(width=110).print(table)
    out = Path("runs") / "bench.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([asdict(row) | {"ratio": row.ratio} for row in found], indent=1) + "\n")
    print(f"written to {out}")


def _sizes(layout: TileLayout, votes: list[Votes]) -> list[Measurement]:
    floor = (math.lgamma(4097) - math.lgamma(K + 1) - math.lgamma(4097 - K)) / math.log(2) / K + 1
    bits = 8 * len(encode_votes(votes[0])) / len(votes[0])
    merged = merge(((one, 1) for one in votes), layout.components)
    both = len(encode_votes(votes[0])) + len(encode_update(Update(0, 0.5, 1.0, merged)))
    ring = 2 * 2 * (NODES - 1) / NODES * 4
    return [
        Measurement("contribution, a component", bits, REFERENCE_BITS, "bits", "reference DeMo"),
        Measurement("contribution, a component", bits, floor, "bits", "entropy floor"),
        Measurement("up and down, a parameter and round", both / layout.parameters, ring, "B", "fp32 ring all-reduce"),
    ]


def _times(contract: Contract, layout: TileLayout, votes: list[Votes]) -> list[Measurement]:
    theta = {"w": torch.randn(ROWS, COLUMNS)}
    momentum = Momentum(layout, contract.demo, "cpu")
    gradient = torch.randn(ROWS, COLUMNS)
    plain = torch.zeros(ROWS, COLUMNS)
    payload = encode_votes(votes[0])
    merged = merge(((one, 1) for one in votes), layout.components)
    replica = Replica(contract, theta, 0, b"")
    copy = milliseconds(theta["w"].clone)

    def compress() -> None:
        momentum.accumulate({"w": gradient}, 1e-3)
        momentum.cut(K)

    def apply() -> None:
        replica.step = 0
        replica.apply(Update(0, 0.5, 1.0, merged), b"")

    def index_add() -> None:
        total = torch.zeros(layout.components, dtype=torch.int16)
        for one in votes:
            signs = np.where(one.positive, np.int16(1), np.int16(-1))
            total.index_add_(0, torch.from_numpy(one.components), torch.from_numpy(signs))

    def merge_all() -> None:
        merger = Merger(layout.components)
        for one in votes:
            merger.add(one, 1)

    dense = torch.zeros(layout.components, dtype=torch.float32)
    dense[torch.from_numpy(merged.components)] = torch.from_numpy(merged.values.astype(np.float32))
    return [
        Measurement("compress (momentum, DCT, top-k, residual)", milliseconds(compress),
                    milliseconds(lambda: _plain_compress(plain, gradient)), "ms", "by einsum and scatter"),
        Measurement("decode and apply, exact", milliseconds(apply),
                    milliseconds(lambda: _float_apply(theta["w"], dense)), "ms", "in float, by einsum"),
        Measurement("fingerprint", milliseconds(lambda: replica.fingerprint(1)), copy, "ms", "one copy"),
        Measurement("encode", milliseconds(lambda: encode_votes(votes[0])), copy, "ms", "one copy"),
        Measurement("decode of the payload", milliseconds(lambda: decode_votes(payload, layout, K)), copy, "ms",
                    "one copy"),
        Measurement(f"merge of {NODES}", milliseconds(merge_all), milliseconds(index_add), "ms", "torch.index_add_"),
    ]  # fmt: skip


def _einsum_tiles(matrix: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """Both passes of a transform over 64×64 tiles, as one writes them down: [rows, 64, columns, 64] in and out."""
    tiles = matrix.view(ROWS // 64, 64, COLUMNS // 64, 64)
    return torch.einsum("yixj,ki,lj->ykxl", tiles, basis, basis)


def _plain_compress(momentum: torch.Tensor, gradient: torch.Tensor) -> None:
    basis = float_basis("dct", CPU)
    momentum.mul_(0.999).add_(gradient, alpha=1e-3)
    coefficients = _einsum_tiles(momentum, basis).transpose(1, 2).reshape(-1, 4096)
    index = coefficients.abs().topk(K, dim=1, sorted=False).indices
    kept = torch.zeros_like(coefficients).scatter_(1, index, coefficients.gather(1, index))
    grid = kept.view(ROWS // 64, COLUMNS // 64, 64, 64).transpose(1, 2).reshape(ROWS, COLUMNS)
    momentum.sub_(_einsum_tiles(grid, basis.T).reshape(ROWS, COLUMNS))


def _float_apply(theta: torch.Tensor, merged: torch.Tensor) -> None:
    grid = merged.view(ROWS // 64, COLUMNS // 64, 64, 64).transpose(1, 2).reshape(ROWS, COLUMNS)
    step = _einsum_tiles(grid, float_basis("dct", CPU).T).reshape(ROWS, COLUMNS)
    theta.sub_(step.sign_(), alpha=1e-3)


def _votes(layout: TileLayout, seed: int) -> Votes:
    """K uniform components a tile: the worst case for a codec."""
    rng = np.random.default_rng(seed)
    components = [tile * 4096 + np.sort(rng.choice(4096, K, replace=False)) for tile in range(layout.tiles)]
    return Votes(np.concatenate(components), rng.random(K * layout.tiles) < 0.5)


def _contract() -> Contract:
    data = DataSpec(corpus_hash="0" * 64, corpus_bytes=1 << 20, train_bytes=1 << 20)
    sections = {name: getattr(RunSpec(), name) for name in RunSpec.model_fields} | {"data": data}
    return Contract(**sections, parameters=(Parameter(name="w", shape=(ROWS, COLUMNS)),))


if __name__ == "__main__":
    main()
