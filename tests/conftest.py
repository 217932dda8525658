from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Without a GPU, Triton's kernels run in numpy. Triton reads this variable only when it is first imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from support.real import RealSwarm, real_swarm


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[RealSwarm]:
    """A swarm of real processes. All of them end with the test."""
    with real_swarm(tmp_path) as found:
        yield found
