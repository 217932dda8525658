"""The organizer goes back to an earlier step of a run of real processes, under kills."""

from __future__ import annotations

import signal
from contextlib import closing
from functools import partial
from pathlib import Path

from deploy.local_swarm.processes import Process
from support.real import RealSwarm, ended, real_swarm, run_text, until
from thinwire_coordinator.export.run_facts import facts_of
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.exact.amendments import rewinds

STEPS = 120


def _followed(node: Process, times: int) -> bool:
    return len([one for one in node.events("node.amended") if "back to step" in one["reason"]]) >= times


def _killed(process: Process) -> None:
    process.tell(signal.SIGKILL)
    ended(process)


def _rewinds(swarm: RealSwarm) -> list[int]:
    """The steps whose rows go back."""
    with closing(open_state(swarm.state, read_only=True)) as state:
        return list(rewinds(state.contract))


def _go_back(swarm: RealSwarm, to: int, *options: str) -> None:
    done = swarm.command("rewind", str(to), "--because", "a spike", *options)
    assert done.returncode == 0, done.stderr


def test_three_nodes_follow_back_twice_and_the_ledger_has_it_all(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(run_text(STEPS))
        names = ("first", "second", "third")
        nodes = {name: swarm.node(name) for name in names}
        swarm.reached(12)
        refused = swarm.command("rewind", "9000")
        assert refused.returncode == 1
        assert "it can go back to steps 0 to" in refused.stderr
        assert "it can go back to steps 0 to" in swarm.command("rewind", "-1").stderr
        dry = swarm.command("rewind", "5", "--dry-run")
        assert "nodes drop their momentum" in dry.stdout
        assert f"{STEPS} → " in dry.stdout

        _go_back(swarm, 5, "--set", "schedule.learning_rate=0.001")
        _killed(nodes.pop("third"))
        for node in nodes.values():
            until(partial(_followed, node, 1), "the node follows", *swarm.processes)
        _killed(coordinator)
        coordinator = swarm.coordinator(None)
        nodes["third"] = swarm.node("third")
        (first,) = _rewinds(swarm)
        swarm.reached(first + 20)
        _go_back(swarm, first + 10, "--samples-again")
        _killed(coordinator)  # the order is written; whether it was carried out, the next process finds
        coordinator = swarm.coordinator(None)
        assert [ended(node, lambda: swarm.status().step) for node in nodes.values()] == [0, 0, 0]
        steps, (first, second) = swarm.status().steps, _rewinds(swarm)
        assert swarm.status().step == steps == STEPS + (first + 1 - 5) + (second + 1 - (first + 10))

        verified = swarm.verify()
        assert verified.count("a spike") == 2
        assert verified.count(f"back to step {first + 10} and its samples") == 1
        assert f"step {steps}: head" in verified
        with closing(open_state(swarm.state, read_only=True)) as state:
            counted = [bool(row.counted) for row in state.ledger.rows()]
            assert counted.count(False) == 2
            facts = facts_of(state, kind_of(state.contract).model_at(state, None))
            assert 0 < facts.contributions < sum(len(row.counted) for row in state.ledger.rows())
        assert len({node.events("node.left")[-1]["fingerprint"] for node in nodes.values()}) == 1


def test_a_complete_run_goes_back_while_its_coordinator_is_stopped(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(run_text(10))
        assert ended(swarm.node("first"), lambda: swarm.status().step) == 0
        coordinator.tell(signal.SIGINT)
        ended(coordinator)
        _go_back(swarm, 6)
        _go_back(swarm, 5)  # an order beside one that waits
        coordinator = swarm.coordinator(None)
        until(lambda: swarm.status().steps == 17, "the run goes on", coordinator)
        assert ended(swarm.node("first"), lambda: swarm.status().step) == 0
        assert swarm.status().step == 17
        swarm.verify()
