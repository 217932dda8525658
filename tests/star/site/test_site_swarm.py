"""Tests a node of several processes in a real swarm: one contribution, and the same replica as any other node."""

from __future__ import annotations

import pytest

from deploy.local_swarm.ports import free_addresses
from support.prometheus import parsed, read, value
from support.real import LONG_MS, RealSwarm, ended, last_fingerprint, run_text, until
from thinwire_node.observe.status import read as read_report
from thinwire_node.training.micro_batch import SAMPLES_MAX
from thinwire_proto.contract import parse_contract

STEPS = 25


def test_a_site_and_a_node_of_one_process_hold_the_same_replica(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(STEPS, length_ms=LONG_MS, samples=8), "--wait-for", "2", "--evaluate-every", "5")
    nodes = [swarm.node("alone"), swarm.node("site", "--device", "cpu*4")]
    assert [ended(node) for node in nodes] == [0, 0]

    status = swarm.status(fingerprint=True)
    assert (status.state, status.step, status.rounds_void) == ("complete", STEPS, 0)
    assert {last_fingerprint(node) for node in nodes} == {(STEPS, status.fingerprint)}
    assert (status.fingerprints_compared, status.fingerprints_different) == (2 * STEPS, 0)
    assert [(node.counted, node.not_counted) for node in status.nodes] == [(STEPS, 0)] * 2
    assert status.loss_newest < status.loss_first - 0.2


LOCAL = """
[rule]
kind = "local_adamw"
micro_batch = 4
[demo]
beta = 0.95
"""


@pytest.mark.parametrize(("samples", "rounds"), [(1, ""), (5, LOCAL)], ids=["demo", "local_adamw"])
def test_all_samples_count_also_if_they_are_fewer_than_the_processes(
    swarm: RealSwarm, samples: int, rounds: str
) -> None:
    swarm.coordinator(run_text(100_000, length_ms=LONG_MS, samples=samples, rounds=rounds))
    assert ended(swarm.node("site", "--device", "cpu*3", "--rounds", "3")) == 0
    (node,) = swarm.status().nodes
    contract = parse_contract((swarm.folder / "site" / "contract.json").read_bytes())
    assert (node.counted, node.not_counted) == (3, 0)
    assert node.tokens == 3 * samples * contract.model.context


def test_metrics_tell_the_processes_of_a_node_apart(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(100_000, length_ms=LONG_MS, samples=3 * SAMPLES_MAX))
    (at,) = free_addresses(1)
    site = swarm.node("site", "--device", "cpu*3", "--metrics", at)
    until(lambda: swarm.counted("site") >= 2, "two rounds count", site)
    whole = 3 * SAMPLES_MAX
    until(lambda: read_report(swarm.folder / "site").given.micro_batch == whole, "all samples at once", site)

    def of_ranks(name: str) -> list[float]:
        samples = parsed(read(f"http://{at}/metrics"))
        return [value(samples, f"thinwire_node_rank_{name}", rank=str(rank)) for rank in range(3)]

    until(lambda: all(of_ranks("compute_seconds_total")), "all processes compute", site)
    assert all(100e6 < held < 10e9 for held in of_ranks("memory_bytes"))
