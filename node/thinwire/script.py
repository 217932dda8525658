"""What surrounds an optimizer in a script: the launcher, the script's own lines, and torch.distributed.checkpoint."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

from torch.optim.optimizer import Optimizer

from thinwire_proto.errors import ConfigError

NOT_THE_SCRIPT = ("thinwire", "torch", "contextlib")
ASKS_FOR_STATE = "torch.distributed.checkpoint.state_dict"


def check_alone(what: str) -> None:
    """Raise ConfigError if a launcher has started several processes, though torch.distributed has no process group.

    Each of them would train by itself, and nothing would say so. what: a class of this package, for the message."""
    started = os.environ.get("WORLD_SIZE", "")
    if started.isdecimal() and int(started) > 1:
        raise ConfigError(
            f"{what}: {started} processes were started (WORLD_SIZE), but torch.distributed has no process group, so "
            'each would train alone; call torch.distributed.init_process_group("gloo") first'
        )


def warn_script(sentence: str) -> None:
    """Warn, and name a line of the user's script, however deep in hooks and libraries this comes up."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in NOT_THE_SCRIPT:
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, RuntimeWarning, stacklevel=level)


def only_asks_for_state(optimizer: Optimizer) -> bool:
    """Whether the call of `step` that runs now is the one by which torch.distributed.checkpoint creates the state.

    `get_optimizer_state_dict` and `set_optimizer_state_dict` call `step` if an optimizer has no state yet, with
    gradients and learning rates of 0. It is no step of the training: ranks may look at their states at different
    times, and a run that was resumed must not be a step ahead. Learning rate and gradients do not tell, for a warm-up
    begins at 0 too, and a rank may have gradients of 0. So this looks for torch's module among the callers."""
    if optimizer.state or any(float(group["lr"]) for group in optimizer.param_groups if "lr" in group):
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != ASKS_FOR_STATE:
        frame = frame.f_back
    return frame is not None
