"""Tests that Prometheus sees every documented metric of a real swarm, with the same values as the status."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.wide_area.hosts import Host, LinkSpec, hosts_behind
from bench.wide_area.needs import check_emulation
from bench.wide_area.programs import START_S, Programs
from deploy.local_swarm.ports import free_addresses
from deploy.local_swarm.processes import BIN, HOW_TO_INSTALL, PROGRAM, prometheus_command
from support.prometheus import Prometheus, parsed, read, value
from support.real import LONG_MS, RESTING, ended, real_swarm, run_text, until
from thinwire_proto.wire.service_pb2 import StatusReply
from tools.metrics_table import COORDINATOR, NODE

STEPS = 40  # takes some seconds, so that each node is scraped during a round
PARAMETERS = 45_248
MACHINE = check_emulation()
WITHOUT_A_CENTRE = {
    "thinwire_coordinator_iterations",
    "thinwire_coordinator_topology",
    "thinwire_coordinator_disagreement_in_steps",
    "thinwire_node_peers",
    "thinwire_node_peer_bytes_total",
}
"""Only in a run whose exchange is gossip (`test_gossip_swarm`)."""
OF_RANKS = {"thinwire_node_rank_compute_seconds_total", "thinwire_node_rank_memory_bytes"}
"""Only of a node of several processes (`test_site_swarm`)."""


@dataclass(frozen=True)
class CompletedRun:
    """A complete run of two nodes with its status and metrics. The coordinator and Prometheus still run."""

    status: StatusReply
    exposition: str
    prometheus: Prometheus
    names: set[str]


def is_whole(prometheus: Prometheus, addresses: list[str]) -> bool:
    """Whether all targets are up and bytes on connections were counted."""
    up = all(prometheus.targets().get(address) == "up" for address in addresses)
    return up and prometheus.value('thinwire_coordinator_wire_bytes_total{direction="sent"}') > 0


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompletedRun]:
    if PROGRAM is None:
        pytest.skip(HOW_TO_INSTALL)
    here, first, second, listen = free_addresses(4)
    nodes = [first, second]
    with real_swarm(tmp_path_factory.mktemp("watched")) as swarm:
        targets = {"coordinator": [here], "node": nodes}
        # on a fast machine the run takes half a second
        program = swarm.start("prometheus", *prometheus_command(swarm.folder, listen, targets, scrape_every="200ms"))
        prometheus = Prometheus(f"http://{listen}")
        swarm.coordinator(
            run_text(STEPS, length_ms=LONG_MS), "--wait-for", "2", "--evaluate-every", "5", "--http", here
        )
        one = swarm.node("one", "--metrics", first, *RESTING)
        # the first node waits for the second, so that the run cannot end before it was scraped
        until(lambda: is_whole(prometheus, [here, *nodes[:1]]), "the first node is scraped", program, one)
        two = swarm.node("two", "--metrics", second, *RESTING)
        seen_up: set[str] = set()

        def all_up() -> bool:
            """Whether each target has been up at some time. A run this short may end before the next check."""
            seen_up.update(address for address, state in prometheus.targets().items() if state == "up")
            return seen_up == {here, *nodes}

        until(all_up, "every target is up", program, one, two)
        until(lambda: prometheus.value("thinwire_coordinator_step") > 0, "steps are scraped", program, one, two)
        assert [ended(one), ended(two)] == [0, 0]
        until(lambda: swarm.status().measured_step == STEPS, "the loss of the last step is measured")
        status, exposition = swarm.status(), read(f"http://{here}/metrics")
        seen = value(parsed(exposition), "thinwire_coordinator_messages_total", direction="sent", kind="status")
        asked = 'thinwire_coordinator_messages_total{direction="sent",kind="status"}'
        until(lambda: prometheus.value(asked) == seen, "the last values are scraped", program)
        yield CompletedRun(status, exposition, prometheus, prometheus.names())


def test_targets_serve_exactly_the_documented_metrics(watched: CompletedRun) -> None:
    """The fixture `watched` has checked that each target was up."""
    promised = {
        f"{metric.name}_bucket" if metric.kind == "histogram" else metric.name for metric in (*COORDINATOR, *NODE)
    }
    assert promised - watched.names <= WITHOUT_A_CENTRE | OF_RANKS
    there = {name for name in watched.names if name.startswith("thinwire_coordinator_")}
    histograms = {name.removesuffix("_bucket") for name in there if name.endswith("_bucket")}
    parts = {f"{name}_{part}" for name in histograms for part in ("sum", "count")}
    ours = {name for name in promised if name.startswith("thinwire_coordinator_")}
    assert there - parts == ours - WITHOUT_A_CENTRE


def test_promtool_accepts_the_metrics(watched: CompletedRun) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None
    told = subprocess.run(
        [promtool, "check", "metrics"], input=watched.exposition, capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def test_byte_counts_equal_those_of_the_status_and_the_nodes(watched: CompletedRun) -> None:
    status, prometheus = watched.status, watched.prometheus

    def payload(direction: str, kinds: str) -> float:
        name = f'thinwire_coordinator_payload_bytes_total{{direction="{direction}",kind=~"{kinds}"}}'
        return prometheus.value(f"sum({name})")

    assert payload("received", "contribution") == status.bytes_up == sum(node.bytes_up for node in status.nodes)
    assert payload("sent", "update") == status.bytes_down == sum(node.bytes_down for node in status.nodes)
    fetched = sum(node.bytes_fetched for node in status.nodes)
    assert payload("sent", "snapshot|corpus") == status.bytes_fetched == fetched
    assert min(status.bytes_up, status.bytes_down, status.bytes_fetched) > 0


def test_other_metrics_equal_the_status(watched: CompletedRun) -> None:
    status, of = watched.status, parsed(watched.exposition)

    def told(name: str, **labels: str) -> float:
        return value(of, f"thinwire_coordinator_{name}", **labels)

    assert told("step") == told("steps") == status.step == STEPS
    assert told("rounds_total", result="sealed", reason="everybody") == STEPS
    assert told("rounds_total", result="void", reason="time") == 0
    assert told("contributions_total", outcome="counted") == sum(node.counted for node in status.nodes) == 2 * STEPS
    assert told("fingerprints_compared_total", result="equal") == status.fingerprints_compared
    assert told("tokens_total") == status.tokens
    assert told("held_out_loss", set="held_out") == status.loss_newest
    assert told("training_loss") == status.loss_training
    assert told("parameters") == status.parameters == PARAMETERS
    assert (told("state", state="complete"), told("state", state="training")) == (1, 0)
    assert (told("nodes", state="active"), told("nodes", state="away")) == (0, 2)
    assert (told("node_changes_total", change="left"), told("node_changes_total", change="lost")) == (2, 0)
    for phase in ("gather", "merge", "seal", "apply"):
        assert told("phase_seconds_count", phase=phase) == STEPS
    assert told("phase_seconds_count", phase="broadcast") == 2 * STEPS
    assert told("contribution_seconds_count", of="receive") == 2 * STEPS
    # 88 components per tile take about seven bits each; a dense exchange sends two nodes' gradients each way
    assert 6 < 8 * told("component_bytes_total", direction="up") / told("components_total", direction="up") < 16
    assert told("dense_allreduce_bytes_total") == 2 * 4 * PARAMETERS * STEPS


RUN_OF_TEN_MEGABYTES = """
[model]
width = 256
layers = 3
heads = 4
hidden = 768
context = 32
[schedule]
steps = 1000
warmup_steps = 2
[round]
samples = 1
weight_max = 1
"""
READ = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())"


def metrics_of(host: Host, address: str) -> str:
    """`/metrics` as read on the host itself, so that the request does not use its link."""
    asked = [sys.executable, "-c", READ, f"http://{address}/metrics"]
    return subprocess.run(host.inside(*asked), capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(bool(MACHINE.missing), reason=f"needs {MACHINE.missing}")
def test_wire_bytes_equal_the_kernels_count_on_the_link(tmp_path: Path) -> None:
    (tmp_path / "RUN.toml").write_text(RUN_OF_TEN_MEGABYTES)
    http = "127.0.0.1:7701"
    link = LinkSpec(rate_mbit=100, round_trip_ms=2, loss=0)
    with hosts_behind(link, 1, 1, tmp_path) as hosts, Programs(tmp_path) as programs:
        address = f"{hosts.coordinator.address}:7700"
        serve = [str(BIN / "thinwire-coordinator"), "serve", "--run", str(tmp_path / "RUN.toml"), "--listen", address]
        serve += ["--state-dir", str(tmp_path / "coordinator"), "--http", http, "--evaluate-every", "1000"]
        serve += ["--invite-file", str(tmp_path / "invite")]
        coordinator = programs.start("coordinator", hosts.coordinator.inside(*serve))
        coordinator.wait_until_ready(tmp_path / "coordinator", START_S)
        start = [str(BIN / "thinwire-node"), "start", f"@{tmp_path / 'invite'}", "--threads", "1"]
        start += ["--state-dir", str(tmp_path / "node")]
        node = programs.start("node", hosts.nodes[0].inside(*start))

        def told(name: str, **labels: str) -> float:
            return value(parsed(metrics_of(hosts.coordinator, http)), f"thinwire_coordinator_{name}", **labels)

        until(lambda: told("step") >= 3, "three updates are sealed", coordinator, node)
        old = told("wire_bytes_total", direction="sent")
        before = hosts.coordinator.traffic()
        # the coordinator reads its connections at most once a second
        until(
            lambda: told("wire_bytes_total", direction="sent") > old, "the wire bytes are read again", coordinator, node
        )
        sent, received = (told("wire_bytes_total", direction=direction) for direction in ("sent", "received"))
        after = hosts.coordinator.traffic()
    assert before.sent_bytes + before.received_bytes > 10_000_000
    assert 0.95 * before.sent_bytes < sent < 1.05 * after.sent_bytes
    # almost all received segments are acknowledgements of 52 bytes, or up to 88 bytes if they report losses
    assert 0.6 * before.received_bytes < received < 1.15 * after.received_bytes
    assert 0.95 * (before.sent_bytes + before.received_bytes) < sent + received
    assert sent + received < 1.05 * (after.sent_bytes + after.received_bytes)
    print(f"wire by TCP_INFO: {sent:,.0f} sent, {received:,.0f} received; on the link: {before} to {after}")
