"""Tests the table of `thinwire-coordinator status`, and its error when no coordinator answers."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from deploy.local_swarm.processes import BIN
from thinwire_common.ready_file import READY_FILE, read_ready
from thinwire_coordinator.cli.status import json_of, table
from thinwire_coordinator.cli.status_client import _invite, _shown, ask_status_of
from thinwire_coordinator.coordinator import Coordinator
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_proto.contract import RunSpec
from thinwire_proto.errors import RemoteError
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import KEY_FILE, open_key
from thinwire_proto.wire.service_pb2 import GossipStatus, HeldOutLoss, NodeShare, NodeStatus, StatusReply, WholeRun

RUN = RunSpec.model_validate({"model": {"width": 2, "layers": 1, "heads": 1, "hidden": 2, "context": 8}})


def printed(status: StatusReply, width: int = 120) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table(status))
    return capture.get()


@pytest.mark.parametrize("left", [b"", b"null", b"{}", b'{"pid": 1'])
def test_what_a_crash_has_left_of_the_ready_file_is_no_process(left: bytes, tmp_path: Path) -> None:
    (tmp_path / READY_FILE).write_bytes(left)
    assert read_ready(tmp_path / READY_FILE, 1) is None


def test_a_run_without_a_centre_shows_its_iterations_and_topology() -> None:
    gossip = GossipStatus(
        iteration_least=40, iteration_median=44, iteration_most=51, topology=3, members=9, disagreement=0.25
    )
    status = StatusReply(state="training", step=40, steps=99, gossip=gossip)
    text = printed(status)
    for words in ("iteration 40 of 99", "40 to 51, median 44", "3 (9 members)", "disagreement", "0.25"):
        assert words in text
    assert "void" not in text  # there are no rounds
    assert "replicas" not in text
    found = json.loads(json_of(status))
    assert (found["gossip"]["iteration_most"], found["gossip"]["members"], found["tokens"]) == ("51", 9, "0")
    assert "gossip" not in json.loads(json_of(StatusReply(step=4)))


@pytest.mark.parametrize("in_full", [False, True])
@pytest.mark.parametrize("gossip", [None, GossipStatus(iteration_least=40_000, iteration_most=51_000, topology=3)])
def test_a_narrow_terminal_shows_every_figure_whole(gossip: GossipStatus | None, in_full: bool) -> None:
    node = NodeStatus(
        name="a-node-with-a-name", active=True, counted=12_345, tokens=987_654_321, iteration=50_000, bytes_up=1_234_567
    )
    held_out = [HeldOutLoss(name="wikipedia-in-english", step=40, loss=2.345, bits_per_byte=0.751)]
    status = StatusReply(
        step=40_000, steps=50_000, tokens=9_876_543_210, nodes=[node], nodes_in_full=in_full, held_out=held_out
    )
    if gossip is not None:
        status.gossip.CopyFrom(gossip)
    narrow, wide = printed(status, 40), printed(status, 200)
    assert "…" not in narrow
    assert Counter(filter(str.isdecimal, narrow)) == Counter(filter(str.isdecimal, wide))


def test_pairs_of_preferences_have_no_perplexity() -> None:
    of_tokens, of_pairs = (StatusReply(held_out=[HeldOutLoss(name="a", loss=0.5, unit=unit)]) for unit in ("", "pair"))
    assert "perplexity" in printed(of_tokens)
    assert "perplexity" not in printed(of_pairs)
    assert "nats a pair" in printed(of_pairs)
    assert "1.65" not in printed(of_pairs)


def test_a_stranger_sees_what_the_ledger_tells_and_no_more() -> None:
    nodes = [NodeStatus(name="b", counted=1, tokens=1234)]
    text = printed(StatusReply(nodes=nodes, nodes_active=7))
    assert all(words in text for words in ("b", "1,234", "7 take part"))
    assert not any(words in text for words in ("not counted", "away", "up\n"))


@pytest.mark.parametrize(
    ("active", "step", "words"),
    [
        (2, 7, "2 report\n"),
        (3, 7, "3 report, 1 in no topology now"),
        (1, 7, "1 report, 1 more in the topology are silent"),
        (0, 9, "0 report\n"),  # the run is complete, and its nodes have left
    ],
)
def test_members_and_nodes_that_report_are_told_apart(active: int, step: int, words: str) -> None:
    """After a kill, the newest topology has fewer members than there are nodes, or more."""
    status = StatusReply(nodes_active=active, gossip=GossipStatus(topology=3, members=2), step=step, steps=9)
    rows = "".join(" ".join(line.split()) + "\n" for line in printed(status).splitlines())
    assert "topology 3 (2 members)" in rows
    assert f"nodes {words}" in rows


@pytest.mark.parametrize("gossip", [None, GossipStatus(topology=3)])
def test_tokens_and_counts_are_of_the_whole_run(gossip: GossipStatus | None) -> None:
    """A coordinator that was started again counts from there, and knows the nodes that have come since."""
    shares = [
        NodeShare(node_id="aa", name="ada", counted=99, tokens=5_000),
        NodeShare(node_id="bb" * 16, counted=70, tokens=4_000),
    ]
    whole = WholeRun(tokens=9_000, since_step=40, nodes_counted=60, nodes=shares)
    nodes = [NodeStatus(node_id="aa", name="ada", counted=1, tokens=7, active=True), NodeStatus(name="eve")]
    status = StatusReply(step=42, steps=99, tokens=7, nodes=nodes, fingerprints_compared=2, bytes_up=12, whole=whole)
    if gossip is not None:
        status.gossip.CopyFrom(gossip)
    text = printed(status)
    rows = [line.split() for line in text.splitlines()]
    assert ["tokens", "9,000"] in rows
    of_nodes = [["ada", "99", "5,000"], ["bbbbbbbb", "70", "4,000"], ["eve", "0", "0"]]
    if gossip is not None:
        of_nodes = [["ada", "0", "–", "5,000"], ["bbbbbbbb", "–", "–", "4,000"], ["eve", "–", "–", "0"]]
    assert [row for row in rows if row and row[0] in ("ada", "bbbbbbbb", "eve")] == of_nodes
    unit = "step" if gossip is None else "iteration"
    assert f"12 B since {unit} 40" in text
    assert ("equal, 2 comparisons since step 40" in text) == (gossip is None)
    assert "and 10 more" in text


def test_status_fails_with_an_error_when_no_coordinator_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    done = subprocess.run(
        [BIN / "thinwire-coordinator", "status", address], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"thinwire-coordinator: {address}: no coordinator answers")
    assert done.stdout == ""


async def test_the_status_of_a_state_directory_is_that_of_the_coordinator_on_it(tmp_path: Path) -> None:
    """Whatever its address is, and whatever else answers there."""
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    open_key(there / KEY_FILE)
    stop = asyncio.Event()
    settings = CoordinatorSettings(here, "0.0.0.0:0", RUN, wait_for=1, evaluate_every=100)
    running = asyncio.ensure_future(Coordinator(settings).run(stop))
    while not (here / READY_FILE).exists() and not running.done():
        await asyncio.sleep(0.01)
    assert (await asyncio.to_thread(ask_status_of, here)).nodes_in_full
    (there / READY_FILE).write_bytes((here / READY_FILE).read_bytes())  # of a process that was killed
    address = f"127.0.0.1:{json.loads((here / READY_FILE).read_bytes())['address'].rpartition(':')[2]}"
    for given in (None, address):
        with pytest.raises(RemoteError, match=f"{address}: the coordinator that answers is not the one of {there}"):
            await asyncio.to_thread(ask_status_of, there, given)
    stop.set()
    await running
    with pytest.raises(RemoteError, match=f"{here}: no coordinator runs here"):
        ask_status_of(here)
    with pytest.raises(RemoteError, match=f"{address}: no coordinator answers"):
        ask_status_of(there)


def test_an_invite_may_be_wrapped_and_is_no_address() -> None:
    invite = Invite("swarm.example.org:7700", bytes(32), bytes(16))
    for given in (f"`{invite}`", f"\u200e{invite}."):
        assert _invite(given) == invite
        assert _shown(given) == "the coordinator"
    assert _invite("swarm.example.org:7700") is None
