"""The stages of a model, compiled by `torch.compile`.

A stage is compiled by itself, without the hooks between stages: there a node that has to leave ends its pass, which is
not to wait for a whole model. A pass without gradients, such as for a held-out loss, is left as it is. A compiler takes
10 seconds to a few minutes, so it runs before the node trains, for one sample and for several: a batch of another size
then needs no new code.

The compiler changes the rounding of a gradient and no bit of a replica.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FOLDER = "compiled"
"""Code of the compiler, in the state directory: it leaves nothing elsewhere, and the next start compiles less."""
COMPILER_BYTES = 300 << 20
"""Memory that torch's compiler takes, as measured, and keeps."""
SAMPLES = (2, 1)
"""The compiler makes code for one sample, and code for any number above it."""


def set_up_compiler(state_dir: Path) -> None:
    """Call it before the first stage of a process is compiled: torch reads these variables with its compiler."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(state_dir / FOLDER)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # more would be processes that stay


class CompiledStages:
    """Stages that are compiled when they are first called. is_on: whether a call uses the compiled code."""

    def __init__(self) -> None:
        self.is_on = True

    def add(self, stage: nn.Module) -> None:
        """Compile this stage at its first call."""
        plain = stage.forward
        compiled: Callable[..., Any] = torch.compile(plain)

        def forward(*arguments: Any, **named: Any) -> Any:
            if not (self.is_on and torch.is_grad_enabled()):
                return plain(*arguments, **named)
            if arguments and isinstance(arguments[0], Tensor) and len(arguments[0]) > 1:
                torch._dynamo.maybe_mark_dynamic(arguments[0], 0)
            return compiled(*arguments, **named)

        stage.forward = forward
