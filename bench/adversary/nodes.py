"""The nodes of a scene and the samples that each one trains on.

Node 0 is the slowest: it delivers in one round of SLOW_EVERY, and what it delivers was computed on the parameters at
the beginning of these rounds. If a contract takes no old bases, it takes part in the first of these rounds alone. Node
1 has different data: tables of character sets in place of programs. The last nodes are the hostile ones.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from bench.adversary.scene import Scene
from bench.convergence.problem import Problem
from bench.convergence.text import Text, stdlib
from thinwire_proto.data.stdlib import make_corpus

SLOWEST, DIFFERENT = 0, 1
SLOW_EVERY = 3
OTHER_DATA = "encodings/"
"""Files that only the node with different data trains on."""
CPU = torch.device("cpu")


class Nodes:
    """Gradients of all nodes, on one model."""

    def __init__(self, scene: Scene) -> None:
        self._size = scene.size
        self.problem = Problem(scene.size.spec, stdlib(), scene.seed, CPU)
        self._different = Problem(scene.size.spec, _other_text(), scene.seed, CPU)

    def put(self, tensors: dict[str, Tensor]) -> None:
        """Train on these tensors from now on, without copying them."""
        self.problem.put(tensors)
        self._different.put(tensors)

    def gradients(self, number: int, turn: int) -> dict[str, Tensor]:
        """The mean gradient of a node's samples of a round."""
        problem = self._different if number == DIFFERENT else self.problem
        first = (turn * self._size.present + number) * self._size.samples
        return problem.gradients(first, self._size.samples)[1]


def begins(number: int, turn: int) -> bool:
    """Whether a node begins to compute a contribution in this round."""
    return number != SLOWEST or turn % SLOW_EVERY == 0


def delivers(number: int, turn: int, age_max: int) -> bool:
    """Whether the contribution of a node arrives in this round. age_max: the contract's `round.base_age_max`."""
    return number != SLOWEST or turn % SLOW_EVERY == min(age_max, SLOW_EVERY - 1)


@lru_cache(maxsize=1)
def _other_text() -> Text:
    corpus = make_corpus()
    train = b"".join(file.content for file in corpus.files if file.name.startswith(OTHER_DATA) and not file.held_out)
    return Text(np.frombuffer(train, np.uint8), corpus.held_out, corpus.hash)
