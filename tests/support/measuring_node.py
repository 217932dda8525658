"""A node that fails at held-out losses.

python measuring_node.py {lies,dies} start HOST:PORT …

lies: its losses are one percent too low. dies: it is killed while it measures a part of step DIES_AT or later.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from torch import Tensor

from thinwire_node import __main__
from thinwire_node.star.trainer import Trainer

DIES_AT = 8

if __name__ == "__main__":
    held_out_loss = Trainer.held_out_loss
    fault = sys.argv[1]

    def fails(trainer: Trainer, tensors: Mapping[str, Tensor], name: str, samples: Sequence[int]) -> float:
        if fault == "dies" and trainer.replica.step >= DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = held_out_loss(trainer, tensors, name, samples)
        return loss * 0.99 if fault == "lies" else loss

    Trainer.held_out_loss = fails  # type: ignore[assignment,method-assign]
    sys.argv = ["thinwire-node", *sys.argv[2:]]
    __main__.main()
