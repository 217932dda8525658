"""Defines a toy model and toy data in one file, and runs the programs with them.

python toy_kinds.py {coordinator,node} ARGUMENTS…
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from thinwire_proto.blobs import Blobs
from thinwire_proto.contract import DATA, MODELS, Contract, DataSpec, ModelSpec, Parameter, RunSpec
from thinwire_proto.task import DATA_KINDS, NO_BLOBS, TASKS, Batch, DataKind, DataSource, HeldOutSet, Made, Task


@MODELS.register
class LineSpec(ModelSpec):
    kind: Literal["line"] = "line"
    vocabulary: int = 2
    context: int = 1
    width: int = 8


@DATA.register
class SlopesSpec(DataSpec):
    kind: Literal["slopes"] = "slopes"


class Line(nn.Module):
    """y = w·x, fitted by least squares."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.slope = nn.Linear(width, 1, bias=False)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        error: Tensor = self.slope(x) - y
        return error.square().mean()

    def stages(self) -> Iterable[nn.Module]:
        return [self.slope]


@TASKS.register("line")
class LineTask(Task):
    def __init__(self, spec: LineSpec) -> None:
        self._spec = spec

    def manifest(self) -> tuple[Parameter, ...]:
        return (Parameter(name="slope.weight", shape=(1, self._spec.width)),)

    def initial_state(self, seed: int, blobs: Blobs = NO_BLOBS) -> dict[str, Tensor]:
        return {"slope.weight": torch.zeros(1, self._spec.width)}

    def model(self, device: torch.device | str, blobs: Blobs = NO_BLOBS) -> Line:
        return Line(self._spec.width).to(device)


class Slopes(DataSource):
    """Nothing is fetched: a sample follows from its position."""

    def __init__(self, contract: Contract) -> None:
        assert isinstance(contract.model, LineSpec)
        self._width = contract.model.width

    def batch(self, positions: Sequence[int]) -> Batch:
        of_each = [torch.randn(self._width, generator=torch.Generator().manual_seed(seed)) for seed in positions]
        x = torch.stack(of_each)
        return x, x.sum(1, keepdim=True)

    def held_out_sets(self) -> tuple[HeldOutSet, ...]:
        return (HeldOutSet("slopes", 64),)

    def held_out(self, name: str, samples: Sequence[int]) -> Batch:
        return self.batch([(1 << 40) + sample for sample in samples])

    def describe(self) -> str:
        return "slopes without end"


class SlopesKind(DataKind):
    has_blobs = False

    def make(self, run: RunSpec, go_on: Callable[[], None]) -> Made:
        return Made(run.data)

    def file_bytes_max(self, spec: SlopesSpec) -> int:
        return 0

    def open(self, file: bytes, contract: Contract, blobs: Blobs) -> Slopes:
        return Slopes(contract)


DATA_KINDS.register("slopes")(SlopesKind())


if __name__ == "__main__":
    program = sys.argv.pop(1)
    sys.argv[0] = f"thinwire-{program}"
    if program == "coordinator":
        from thinwire_coordinator.__main__ import main
    else:
        from thinwire_node.__main__ import main
    main()
