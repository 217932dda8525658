"""Real nodes and a coordinator train by gossip; one node is killed and started again; the mean is exported."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.local_swarm.ports import free_addresses
from deploy.local_swarm.processes import Process
from support.prometheus import parsed, read, value
from support.real import END_S, RealSwarm, ended, real_swarm, run_text, until, without_a_centre
from support.swarm_parameters import counted_samples, deposited_mean, journal_of, parameters_of, sealed_mean
from thinwire_proto.contract import parse_contract

STEPS = 30
OPTIONS = ("--log-level", "debug")
LOSSES = ("loss", "loss_min", "loss_max")
RUN = run_text(STEPS, length_ms=2000, rounds='pace = "clock"')  # a restart is shorter than two
RUN += without_a_centre(3, 4, topology="complete", codec="int8", patience_ms=8000)


def distance_of(parameters: Iterable[torch.Tensor]) -> float:
    """The root mean square distance of nodes from their mean."""
    nodes = torch.stack([x.double() for x in parameters])
    return float(((nodes - nodes.mean(0)) ** 2).sum(1).mean().sqrt())


def check_predicted_disk(swarm: RealSwarm, coordinator: Process) -> None:
    """The coordinator predicted the bytes of the run before its first row."""
    files = [path for folder in ("snapshots", "updates") for path in (swarm.state / folder).iterdir()]
    taken = sum(path.stat().st_size for path in files)
    (predicted,) = coordinator.events("coordinator.disk_forecast")
    assert taken < predicted["total_bytes"] < 3 * taken


def history_at(address: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read(f"http://{address}/api/history"))
    return found


def check_what_is_shown(swarm: RealSwarm, address: str) -> None:
    """The page's curves and the nodes' bytes agree with the run."""
    found = history_at(address)
    assert found["held_out"]["step"] == [0, STEPS]
    assert found["held_out"]["loss"][1] < found["held_out"]["loss"][0]
    assert found["steps"]["step"][-1] == STEPS
    assert all(
        least <= mean <= most for mean, least, most in zip(*(found["steps"][name] for name in LOSSES), strict=True)
    )
    told = swarm.status()
    assert told.gossip.all_reduce_bytes > 0
    assert {node.iteration for node in told.nodes} == {STEPS}
    assert all(node.HasField("loss") and node.relay_up > 0 and node.relay_down > 0 for node in told.nodes)
    assert all(node.direct_up == 0 and node.relay_up == node.bytes_up for node in told.nodes)
    status = json.loads(read(f"http://{address}/api/status"))
    rows = status["node_list"]["rows"]
    assert [row["up"] > 0 and row["down"] > 0 for row in rows] == [True] * 3
    assert sum(row["up"] for row in rows) == status["bytes"]["up"]
    assert sum(row["down"] for row in rows) <= status["bytes"]["down"]  # one may be on its way to a node that leaves


def test_three_nodes_train_and_one_is_killed_in_the_middle(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        (here,) = free_addresses(1)
        coordinator = swarm.coordinator(RUN, "--http", here)
        nodes = {name: swarm.node(name, *OPTIONS) for name in ("one", "two", "three")}
        journal = tmp_path / "two" / "gossip.safetensors"
        until(journal.exists, "a journal", coordinator, *nodes.values())
        nodes["two"].tell(signal.SIGKILL)
        nodes["two"].popen.wait()
        nodes["two"] = swarm.node("two", *OPTIONS)
        for node in nodes.values():
            assert ended(node) == 0, node.tail(30)
        for node in nodes.values():
            assert [event["refused"] for event in node.events("node.deposited")] == [""]
            assert (node.text().count("the run is complete"), node.text().count("Traceback")) == (1, 0)
        until(lambda: swarm.status().measured_step == STEPS, "the loss of the mean", coordinator)
        told = parsed(read(f"http://{here}/metrics"))
        check_what_is_shown(swarm, here)
        series = history_at(here)
        coordinator.end(END_S)
        check_predicted_disk(swarm, coordinator)
        swarm.coordinator(None, "--http", here)
        until(lambda: history_at(here)["complete"], "the history of the earlier term", *swarm.processes[-1:])
        again = history_at(here)
        for name in ("step", "tokens"):
            assert again["steps"][name][-1] == series["steps"][name][-1], name
        assert min(again["steps"]["loss_min"]) == min(series["steps"]["loss_min"])
        assert max(again["steps"]["loss_max"]) == max(series["steps"]["loss_max"])
        assert again["held_out"] == series["held_out"]
        assert value(told, "thinwire_coordinator_topology") >= 1
        assert value(told, "thinwire_coordinator_iterations", of="least") == STEPS
        contract = parse_contract((tmp_path / "one" / "contract.json").read_bytes())
        expected = deposited_mean(swarm, list(nodes))
        assert sealed_mean(swarm).equal(expected.mean)
        assert len(coordinator.events("coordinator.deposit_bounded")) == len({*expected.far, *expected.clipped})
        done = swarm.command("export", "--out", str(tmp_path / "model"))
        assert done.returncode == 0, done.stderr
        samples = {name: journal_of(tmp_path / name).samples for name in nodes}
        assert samples["one"] == samples["three"] == 4 * STEPS
        assert 0 < samples["two"] <= 4 * STEPS  # its peers may have gone on without it, and then it skips iterations
        assert counted_samples(swarm) == sum(samples.values())
        assert value(told, "thinwire_coordinator_tokens_total") == sum(samples.values()) * contract.model.context
        verified = swarm.verify()
        assert f"the final mean of {len(nodes) - len(expected.far)} nodes" in verified
        assert "1 measurements of the disagreement: the sketches that the nodes signed give" in verified
        (measured,) = coordinator.events("coordinator.disagreement")
        assert (measured["iteration"], measured["nodes"]) == (STEPS, 3)
        assert measured["distance"] == pytest.approx(
            distance_of(parameters_of(tmp_path / name) for name in nodes), rel=0.1
        )
        assert value(told, "thinwire_coordinator_disagreement_in_steps") == pytest.approx(measured["in_steps"])
