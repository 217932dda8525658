"""The organizer amends a gossip run of real processes; the coordinator and a node are killed meanwhile."""

from __future__ import annotations

import json
import signal
import urllib.request
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from deploy.local_swarm.processes import Process
from support.dying import NEVER
from support.real import RealSwarm, ended, real_swarm, run_text, until, without_a_centre
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.contract import Contract
from thinwire_proto.exact.amendments import contract_at
from thinwire_proto.exact.schedule import learning_rate

NAMES = ("one", "two", "three")
UNTOUCHED = "three"
"""The node that is not killed. Those that are may come back to a later iteration."""
BEAT_MS = 2000
STEPS = 100_000
BEYOND = 40
"""Iterations that are done under each contract before the next one, at least."""
RATE, DECAY = 0.0005, 0.1
RUN = run_text(STEPS, length_ms=BEAT_MS, rounds='pace = "clock"')
RUN += without_a_centre(3, 2, topology="complete", codec="int8", patience_ms=2000)


def recording(swarm: RealSwarm, name: str) -> Process:
    return swarm.node(name, through=("dying.py", NEVER, "1", "--rates", str(swarm.folder / f"{name}.rates")))


def amended(swarm: RealSwarm, *options: str) -> None:
    done = swarm.command("amend", *options)
    assert done.returncode == 0, done.stderr
    assert "an iteration that no node can have come to" in done.stdout


def contract_of(swarm: RealSwarm) -> Contract:
    with closing(open_state(swarm.state, read_only=True)) as state:
        return state.contract


def first_amended(swarm: RealSwarm) -> int:
    """The iteration that an amendment of now holds from."""
    with closing(open_state(swarm.state, read_only=True)) as state:
        return kind_of(state.contract).first_amended(state)


def told(*nodes: Process) -> bool:
    """Whether these nodes, which have trained since before, have heard of the newest amendment."""
    return all(node.events("node.amended") for node in nodes)


def check_rates(swarm: RealSwarm, contract: Contract) -> None:
    """Each step of each node has the rate and decay of the contract in force at its iteration."""
    last = 0
    for name in NAMES:
        steps = list(map(json.loads, (swarm.folder / f"{name}.rates").read_text().splitlines()))
        for iteration, rate, decay in steps:
            schedule = contract_at(contract, iteration).schedule
            assert (rate, decay) == (learning_rate(schedule, iteration), schedule.weight_decay), (name, iteration)
        done = {iteration for iteration, *_ in steps}
        assert min(done) < contract.amendments[0].step < max(done)
        last = max(last, *done)
        if name == UNTOUCHED:
            bounds = [0, *(amendment.step for amendment in contract.amendments), contract.schedule.steps]
            for start, stop in pairwise(bounds):  # it may have skipped to where a peer is, but has steps under each
                assert done & set(range(start, stop)), (start, stop)
    assert last == contract.schedule.steps - 1


def test_all_nodes_change_at_the_same_iteration_whoever_is_killed(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(RUN)
        nodes = {name: recording(swarm, name) for name in NAMES}
        swarm.reached(BEYOND)

        refused = swarm.command("amend", "--set", "demo.k=16")
        assert refused.returncode == 1
        assert "demo.k cannot change within a run whose exchange is 'gossip'" in refused.stderr
        assert "these keys may change: schedule." in refused.stderr
        back = swarm.command("rewind", "4")
        assert "`thinwire-coordinator branch` begins another one" in back.stderr

        why = "a spike"
        change = ("--set", f"schedule.learning_rate={RATE}", "--set", f"schedule.weight_decay={DECAY}")
        amended(swarm, *change, "--because", why)
        until(lambda: contract_of(swarm).amendments, "the amendment is on disk", *swarm.processes)
        for process in (coordinator, nodes["two"]):
            process.tell(signal.SIGKILL)
            ended(process)
        before = contract_of(swarm)
        coordinator, nodes["two"] = swarm.coordinator(None), recording(swarm, "two")
        until(lambda: told(nodes["one"], nodes["three"]), "the others are told", *swarm.processes)
        assert contract_of(swarm).amendments == before.amendments
        swarm.reached(before.amendments[0].step + BEYOND)

        assert swarm.command("pause").returncode == 0  # leases do not grow meanwhile
        until(lambda: "paused" in swarm.status().state, "the pause", *swarm.processes)
        reach = first_amended(swarm)
        steps = reach + 5 * BEYOND
        amended(swarm, "--set", f"schedule.steps={steps}", "--because", "it has learned enough")
        nodes["one"].tell(signal.SIGKILL)
        ended(nodes["one"])
        until(lambda: swarm.status().steps == steps, "the run is shorter", *swarm.processes)
        nodes["one"] = recording(swarm, "one")
        until(lambda: "one" in swarm.active(), "the node is back", *swarm.processes)
        assert swarm.command("resume").returncode == 0
        until(lambda: told(nodes["two"]), "the one that came back hears of the end", *swarm.processes)
        for node in nodes.values():
            assert ended(node, lambda: swarm.status().gossip.iteration_most) == 0, node.tail(30)
        contract = contract_of(swarm)
        assert contract.schedule.steps == steps == swarm.status().step
        assert contract.amendments[1].step == reach
        check_rates(swarm, contract)

        with urllib.request.urlopen(f"{swarm.ready['page']}/api/status") as reply:
            marks = json.load(reply)["run"]["amendments"]
        assert [mark["step"] for mark in marks] == [one.step for one in contract.amendments]
        late = swarm.command("amend", "--set", f"schedule.steps={steps + 100}")
        assert late.returncode == 1
        assert "`thinwire-coordinator branch` begins another one with its final mean" in late.stderr
        verified = swarm.verify()
        for amendment in contract.amendments:
            assert f"amended from iteration {amendment.step} on: {amendment.in_words}" in verified
        assert "the final mean of" in verified
