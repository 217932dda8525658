"""The held-out loss of parameters that a system handed over: one evaluator for all of them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from bench.convergence.problem import Problem
from bench.convergence.text import stdlib
from bench.wide_area.workload import PRESET, SEED
from thinwire_proto.models import BYTE_PRESETS

HELD_OUT_SAMPLES = 128


class Evaluator:
    """Keeps the model and the held-out text. samples: of each evaluation, spread evenly over the text."""

    def __init__(self, samples: int = HELD_OUT_SAMPLES) -> None:
        self._samples = samples
        self._problem = Problem(BYTE_PRESETS[PRESET], stdlib(), SEED, torch.device("cpu"))
        self._shapes = {name: tensor.shape for name, tensor in self._problem.parameters.items()}

    @property
    def parameters(self) -> int:
        """The number of the model's parameters."""
        return sum(shape.numel() for shape in self._shapes.values())

    def loss(self, file: Path) -> float:
        """The held-out loss, in nats a token. Raises ValueError for a file that does not hold the model."""
        found = load_file(file)
        if {name: tensor.shape for name, tensor in found.items()} != self._shapes:
            raise ValueError(f"{file.name} does not hold the parameters of {PRESET}: names or shapes differ")
        self._problem.put({name: tensor.float() for name, tensor in found.items()})
        return self._problem.held_out_loss(self._samples)
