from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Where there is no card, kernels run in numpy. Triton reads this when it is first imported, and not again.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from support.real import RealSwarm, real_swarm


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[RealSwarm]:
    """A folder for a swarm of real processes, none of which outlives the test."""
    with real_swarm(tmp_path) as found:
        yield found
