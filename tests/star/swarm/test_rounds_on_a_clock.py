"""Repeats scenarios of tests/scenarios with real processes and real sockets, where this is possible."""

from __future__ import annotations

import pytest

import chaos


def test_the_swarm_survives_half_a_minute_of_chaos(capsys: pytest.CaptureFixture[str]) -> None:
    """Scenario 12. `make chaos` runs for any length of time."""
    chaos.main(["--seed", "1", "--minutes", "0.5"])
    assert "all replicas were equal, and the ledger verifies" in capsys.readouterr().out
