"""Real nodes that listen for each other train without a centre, and need the relay of their coordinator for nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import torch
from safetensors import safe_open

from deploy.local_swarm.ports import free_addresses
from support.prometheus import Series, parsed, read, value
from support.real import RESTING, ended, real_swarm, run_text, until, without_a_centre
from thinwire_node.gossip.journal import JOURNAL_FILE, MEMBER
from thinwire_node.observe.status import read as status_of
from thinwire_proto.contract import parse_contract
from thinwire_proto.exact.replica import load_replica
from thinwire_proto.gossip.final_mean import final_mean, in_integers

GOSSIP = without_a_centre(3, 4, topology="complete", codec="int8", patience_ms=2000)
STEPS = 120
"""With nodes that rest, so many last until the peers of a restarted node have dialled it again."""
NAMES = ("one", "two", "three")
BEAT_BYTES_MAX = 1024
BEATS = 6
"""Beats of each node over which the coordinator's bytes are measured. They last longer than FIRST_MESSAGE_S, after
which a coordinator ends a stream that has brought nothing."""


def run_of(steps: int, beat_ms: int) -> str:
    return run_text(steps, length_ms=beat_ms, rounds='pace = "clock"') + GOSSIP


def parameters_of(folder: Path) -> torch.Tensor:
    """The parameters that a node's journal holds at the end."""
    with safe_open(folder / JOURNAL_FILE, framework="pt") as file:
        x: torch.Tensor = file.get_tensor(MEMBER + "x")
        return x.clone()


def test_nodes_that_listen_train_and_one_is_killed_in_the_middle(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        ports = dict(zip(NAMES, free_addresses(len(NAMES)), strict=True))
        coordinator = swarm.coordinator(run_of(STEPS, beat_ms=2000))
        nodes = {name: swarm.node(name, "--peers", at, *RESTING) for name, at in ports.items()}
        journal = tmp_path / "two" / "gossip.safetensors"
        until(journal.exists, "a journal", coordinator, *nodes.values())
        nodes["two"].tell(signal.SIGKILL)
        nodes["two"].popen.wait()
        nodes["two"] = swarm.node("two", "--peers", ports["two"], *RESTING)
        for node in nodes.values():
            assert ended(node) == 0, node.tail(30)
            assert [event["refused"] for event in node.events("node.deposited")] == [""]
            assert node.events("node.peer_direct")
            assert not node.events("node.peer_line_failed")
        contract = parse_contract((tmp_path / "one" / "contract.json").read_bytes())
        path = next(path for path in (swarm.state / "snapshots").glob("*.safetensors") if path.stem != "0")
        model = load_replica(contract, path)
        mean = final_mean(in_integers(parameters_of(tmp_path / name)) for name in nodes)
        assert torch.equal(torch.cat([tensor.reshape(-1) for tensor in model.tensors.values()]), mean)
        assert "the final mean of 3 nodes" in swarm.verify()
        for told in swarm.status().nodes:
            assert told.direct_up > told.relay_up, "what a node reports of its direct lines is shown"
            assert told.direct_up + told.relay_up == told.bytes_up


def test_a_node_whose_peers_are_direct_costs_the_coordinator_a_kilobyte_a_beat(tmp_path: Path) -> None:
    """Bytes on the wire, with TLS and TCP, of all that the coordinator sends to its nodes."""
    with real_swarm(tmp_path) as swarm:
        here, *told = free_addresses(1 + len(NAMES))
        coordinator = swarm.coordinator(run_of(100_000, beat_ms=2000), "--http", here)
        listens = ("--peers", "127.0.0.1:0", *RESTING)
        nodes = [swarm.node(name, *listens, "--metrics", at) for name, at in zip(NAMES, told, strict=True)]

        def figures(address: str = here) -> dict[Series, float]:
            return parsed(read(f"http://{address}/metrics"))

        def all_are_direct() -> bool:
            return all(value(figures(at), "thinwire_node_peers", line="direct") == 2 for at in told)

        def beats() -> float:
            return value(figures(), "thinwire_coordinator_messages_total", direction="sent", kind="beat")

        until(lambda: all(node.events("node.peer_direct") for node in nodes), "lines", coordinator, *nodes)
        until(all_are_direct, "direct lines", coordinator, *nodes)

        def wire() -> float:
            return value(figures(), "thinwire_coordinator_wire_bytes_total", direction="sent")

        joined = beats()
        until(lambda: beats() >= joined + len(nodes), "the first beats", coordinator, *nodes)
        stale = wire()  # readings may be old where they are expensive; the next one has the bytes of joining
        until(lambda: wire() > stale, "a reading of the wire", coordinator, *nodes)
        before, first = figures(), [figures(at) for at in told]
        since = beats()
        until(lambda: beats() >= since + BEATS * len(nodes), "beats", coordinator, *nodes)
        after = figures()  # before anything asks the coordinator for its status, over a connection of its own
        for shown in swarm.status().nodes:
            assert len(shown.edges) == 2
            assert {edge.node_id for edge in shown.edges} < {node.node_id for node in swarm.status().nodes}
            report = status_of(tmp_path / shown.name)
            assert report.peers is not None
            assert [edge.line for edge in report.peers.edges] == ["direct", "direct"]

        def grown(name: str, **labels: str) -> float:
            return value(after, name, **labels) - value(before, name, **labels)

        answers = grown("thinwire_coordinator_messages_total", direction="sent", kind="beat")
        assert answers >= BEATS * len(nodes)
        for name in ("wire_bytes_total", "payload_bytes_total"):
            labels = {} if name.startswith("wire") else {"kind": "beat"}
            a_beat = grown(f"thinwire_coordinator_{name}", direction="sent", **labels) / answers
            print(name, a_beat)
            assert 0 < a_beat <= BEAT_BYTES_MAX, name
        assert not any(node.events("node.no_session") for node in nodes)
        assert grown("thinwire_coordinator_payload_bytes_total", direction="sent", kind="parcel") == 0
        for at, was in zip(told, first, strict=True):
            now = figures(at)
            for direction in ("sent", "received"):
                labels = {"direction": direction, "line": "direct"}
                name = "thinwire_node_peer_bytes_total"
                assert value(now, name, **labels) > value(was, name, **labels)
