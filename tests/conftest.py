from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.real import RealSwarm, real_swarm


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[RealSwarm]:
    """A folder for a swarm of real processes, none of which outlives the test."""
    with real_swarm(tmp_path) as found:
        yield found
