"""The amendments of a run file hold from their steps on, in a run of real processes."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

from support.real import RealSwarm, ended, real_swarm, run_text
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_proto.exact.amendments import contract_at
from thinwire_proto.exact.schedule import learning_rate

AMENDMENTS = """
[[amend]]
at = 30
round.samples = 8
schedule.learning_rate = 0.001
because = "larger"

[[amend]]
at = 10_000
schedule.floor = 0.2
"""


def test_they_hold_across_restarts_and_are_ordered_once(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        file = tmp_path / "RUN.toml"
        text = run_text(20_000) + AMENDMENTS
        coordinator = swarm.coordinator(text)
        assert "waits for step 30: round.samples = 8, schedule.learning_rate = 0.001: larger" in _listed(swarm)
        again = swarm.command("amend", "--set", "round.samples=6", "--at", "20", "--dry-run").stdout
        assert "note: an amendment waits for step 30, and round.samples = 8 holds from there on" in again
        early = swarm.command("amend", "--set", "schedule.steps=9000", "--dry-run").stdout
        assert "note: the run will have ended when schedule.floor = 0.2 would hold, from step 10000 on" in early
        coordinator.tell(signal.SIGKILL)
        ended(coordinator)
        coordinator, node = swarm.coordinator(text), swarm.node("alone")
        swarm.reached(40)
        assert "from step 30 on: round.samples = 8" in _listed(swarm)
        assert "withdrawn: schedule.floor = 0.2" in swarm.command("amend", "--withdraw").stdout
        coordinator.tell(signal.SIGTERM)
        assert ended(coordinator) == 0
        file.write_text(text.replace("at = 30", "at = 31"))
        refused = swarm.command("serve", "--run", str(file))
        assert "holds a run that began with other amendments than the run file has" in refused.stderr
        coordinator = swarm.coordinator(text)
        assert "10000" not in _listed(swarm)
        coordinator.tell(signal.SIGTERM)
        assert ended(coordinator) == 0
        node.tell(signal.SIGKILL)
        with closing(open_state(swarm.state, read_only=True)) as state:
            before, after = (contract_at(state.contract, step) for step in (29, 30))
        assert (before.round.samples, after.round.samples) == (4, 8)
        rates = [learning_rate(one.schedule, 30) for one in (before, after)]
        assert rates[0] == 2 * rates[1]


def _listed(swarm: RealSwarm) -> str:
    done = swarm.command("amend")
    assert done.returncode == 0, done.stderr
    return done.stdout
