"""Recognizes the step by which torch.distributed.checkpoint makes an optimizer create its state.

`get_optimizer_state_dict` and `set_optimizer_state_dict` call `step` if an optimizer has no state yet, with gradients
and learning rates of 0. It is no step of the training: ranks may look at their states at different times, and a run
that was resumed must not be a step ahead.
"""

from __future__ import annotations

import sys
from types import FrameType

from torch.optim.optimizer import Optimizer

CALLER = "torch.distributed.checkpoint.state_dict"


def only_asks_for_state(optimizer: Optimizer) -> bool:
    """Whether the call of `step` that runs now has this purpose.

    Learning rate and gradients do not tell: a warm-up begins at 0 too, and a rank may have gradients of 0. So this
    looks for torch's module among the callers.
    """
    if optimizer.state or any(float(group["lr"]) for group in optimizer.param_groups if "lr" in group):
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != CALLER:
        frame = frame.f_back
    return frame is not None
