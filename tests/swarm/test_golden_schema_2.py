"""Tests that a run with a ledger of schema 2, which has no signatures, is verified, signed and continued.

See tests/golden/README.md. Each test works on a copy.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.real import RealSwarm, ended, real_swarm

GOLDEN = Path(__file__).parents[1] / "golden" / "schema_2"
MORE = 2
"""Number of steps by which the run is continued."""


@pytest.fixture
def facts() -> dict[str, Any]:
    return dict(json.loads((GOLDEN / "facts.json").read_text()))


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[RealSwarm]:
    with real_swarm(tmp_path) as swarm:
        shutil.copytree(GOLDEN / "coordinator", swarm.state)
        yield swarm


def test_a_run_without_signatures_is_verified_signed_and_continued(swarm: RealSwarm, facts: dict[str, Any]) -> None:
    before = (swarm.state / "ledger.sqlite").read_bytes()
    text = swarm.verify()
    assert f"step {facts['step']}: head {facts['head']}, fingerprint {facts['fingerprint']}" in text
    assert f"{facts['step']} rows are not signed yet" in text
    assert (swarm.state / "ledger.sqlite").read_bytes() == before, "reading must not change the ledger"

    coordinator, node = swarm.coordinator(), swarm.node("a")
    assert [event["rows"] for event in coordinator.events("coordinator.rows_signed")] == [facts["step"]]
    swarm.reached(facts["step"] + MORE)
    assert swarm.status(fingerprint=True).fingerprints_different == 0
    for process in (node, coordinator):
        process.tell(signal.SIGTERM)
        ended(process)

    text = swarm.verify()
    assert f"contract {facts['contract']}" in text
    assert f"{facts['contributions']} contributions are from before signatures" in text
    assert "not signed yet" not in text
    again = swarm.coordinator()
    assert not again.events("coordinator.rows_signed"), "they are signed once"
