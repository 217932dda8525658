"""Zeros that take no memory of a CPU before they are written to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def zeros(shape: Sequence[int], device: torch.device | str) -> Tensor:
    """Float32 zeros. torch writes its zeros at once; numpy asks the system for pages that are cleared on first use."""
    if torch.device(device).type == "cpu":
        return torch.from_numpy(np.zeros(tuple(shape), np.float32))
    return torch.zeros(tuple(shape), device=device)
