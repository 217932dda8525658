"""Tests the table of `thinwire-coordinator status`, and its error when no coordinator answers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest
from rich.console import Console

from deploy.local_swarm.processes import BIN
from thinwire_coordinator.cli.status import json_of
from thinwire_coordinator.cli.status_table import NODES_SHOWN, table
from thinwire_proto.wire.service_pb2 import GossipStatus, HeldOutLoss, NodeStatus, StatusReply


def printed(status: StatusReply) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table(status))
    return capture.get()


def test_the_table_shows_each_node_and_prints_names_literally() -> None:
    nodes = [
        NodeStatus(name="[red]a[/]", active=True, counted=3, tokens=1234, bytes_up=5600, replica_equal=True),
        NodeStatus(name="b", counted=1, replica_equal=False),
    ]
    text = printed(
        StatusReply(
            state="training",
            step=4,
            steps=9,
            round=5,
            tokens=99_000,
            loss_newest=2.345,
            nodes=nodes,
            nodes_in_full=True,
        )
    )
    for words in ("step 4 of 9", "training", "2.345", "99,000", "[red]a[/]", "1,234", "5.6 kB", "DIFFERS (away)"):
        assert words in text


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


def test_a_stranger_sees_what_the_ledger_tells_and_no_more() -> None:
    nodes = [NodeStatus(name="b", counted=1, tokens=1234)]
    text = printed(StatusReply(nodes=nodes, nodes_active=7))
    assert all(words in text for words in ("b", "1,234", "7 take part"))
    assert not any(words in text for words in ("not counted", "away", "up\n"))


def test_each_held_out_set_is_shown_with_its_perplexity_and_bits_per_byte() -> None:
    held_out = [
        HeldOutLoss(name="[red]wiki[/]", step=40, loss=2.0, bits_per_byte=0.75),
        HeldOutLoss(name="images", step=40, loss=800.0),
    ]
    text = printed(StatusReply(held_out=held_out))
    rows = [line.split() for line in text.splitlines()]
    assert ["[red]wiki[/]", "2.000", "7.39", "0.750"] in rows
    assert ["images", "800.000", "1.0e+304", "–"] in rows  # images are not text


def test_a_long_table_shows_the_nodes_with_the_most_tokens() -> None:
    nodes = [NodeStatus(name=f"node-{number:03}", tokens=number) for number in range(NODES_SHOWN + 10)]
    text = printed(StatusReply(nodes=nodes))
    assert "node-059" in text
    assert "node-009" not in text
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


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serve", "--help"], ["status", "127.0.0.1:1"]])
def test_commands_that_need_no_model_load_no_torch(arguments: list[str]) -> None:
    code = f"""
import sys
from thinwire_coordinator.__main__ import main
sys.argv = ["thinwire-coordinator", *{arguments!r}]
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "thinwire" in done.stdout or "no coordinator answers" in done.stderr
