"""Unit tests of observation: byte counts, metrics, the view and the status command."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from support.reports import small_report
from thinwire_common.tcp import End, wire_counts
from thinwire_common.traffic import Traffic
from thinwire_node.__main__ import main
from thinwire_node.observe import status
from thinwire_node.observe.view import lines
from thinwire_node.report import Edge, Peers
from thinwire_node.storage.state import NodeState
from thinwire_proto.errors import ConfigError

REPORT = small_report()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells it on Linux only")
@pytest.mark.parametrize(
    ("family", "host", "ip_bytes"), [(socket.AF_INET, "127.0.0.1", 20), (socket.AF_INET6, "::1", 40)]
)
def test_the_kernel_counts_segments_with_their_headers(family: int, host: str, ip_bytes: int) -> None:
    with (
        socket.create_server((host, 0), family=family) as server,
        socket.create_connection((host, server.getsockname()[1])) as client,
        server.accept()[0] as other,
    ):
        traffic = Traffic()
        traffic.connecting_to(server.getsockname()[1])
        client.sendall(b"x" * 100_000)
        received = 0
        while received < 100_000:
            received += len(other.recv(65536))
        other.sendall(b"y" * 1000)
        client.recv(1000)
        (count,) = wire_counts(server.getsockname()[1], End.THEIRS).values()  # without the server's own end
        headers = ip_bytes + 20 + 12
        assert (count.sent - 100_000) % headers == 0
        assert 100_000 + 2 * headers < count.sent < 110_000
        assert 1000 + headers < count.received < 10_000
        traffic.look()
        seen = traffic.wire
        assert seen is not None
        assert seen.sent >= count.sent
    traffic.look()  # a closed connection still counts
    assert traffic.wire == seen


@pytest.mark.parametrize("unit", ["token", "pair"])
def test_a_loss_has_its_unit(unit: str) -> None:
    shown = "\n".join(line.plain for line in lines(replace(REPORT, loss_unit=unit), 200))
    assert f"2.412 nats/{unit}" in shown


@pytest.mark.parametrize("columns", ["40", "30"])
def test_a_narrow_terminal_shows_every_figure_whole(
    columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edges = [Edge(member, "relay", 3_456_789) for member in (1, 2)]
    peers = Peers(5, 3, 1, 34.5, 0, {"relay": 1_234_567}, {"relay": 7_654_321}, edges)
    for folder, report in (("star", REPORT), ("gossip", replace(REPORT, part=replace(REPORT.part, peers=peers)))):
        (tmp_path / folder).mkdir()
        status.write(tmp_path / folder, report)
        shown = {}
        for width in ("200", columns):
            monkeypatch.setenv("COLUMNS", width)
            monkeypatch.setattr(sys, "argv", ["thinwire-node", "status", "--state-dir", str(tmp_path / folder)])
            main()
            shown[width] = "\n".join(capsys.readouterr().out.splitlines()[:-1])  # the last one has an age
        assert "…" not in shown[columns]
        assert max(map(len, shown[columns].splitlines())) <= int(columns)
        assert Counter(filter(str.isdecimal, shown[columns])) == Counter(filter(str.isdecimal, shown["200"]))


@pytest.mark.parametrize(
    ("state", "running", "age_s", "words"),
    [
        ("training", True, 1, "the node is running"),
        ("training", True, 60, "the node is running, but has not reported for 60 s: it is stopped or too busy"),
        ("training", False, 1, "the node is not running; it ended without leaving 1.0 s ago"),
        ("left", False, 7200, "the node is not running; it left 2 hours ago"),
        ("training", None, 1, "the node is running"),
        ("training", None, 60, "the node is not running; it ended without leaving 60 s ago"),
    ],
)
def test_the_condition_says_whether_the_node_runs(state: str, running: bool | None, age_s: float, words: str) -> None:
    assert status.condition(replace(REPORT, state=state), running, REPORT.at_s + age_s) == words


def test_a_node_that_failed_is_said_to_have_ended_with_its_error(tmp_path: Path) -> None:
    why = "no coordinator at 127.0.0.1:9 for 5 s"
    failed = replace(REPORT, state="left", ended_by=why)
    said = f"the node is not running; an error ended it 2 hours ago: {why}"
    assert status.condition(failed, False, REPORT.at_s + 7200) == said
    assert status.condition(failed, True, REPORT.at_s) == "the node is running"  # started again
    old = json.loads(status.REPORT.dump_json(REPORT))
    del old["ended_by"]
    (tmp_path / status.FILE).write_text(json.dumps(old))
    assert status.read(tmp_path).ended_by == ""


def test_a_report_can_be_read_again_and_the_lock_shows_whether_the_node_runs(tmp_path: Path) -> None:
    status.write(tmp_path, REPORT)
    assert status.read(tmp_path) == REPORT
    assert status.runs(tmp_path) is False
    state = NodeState(tmp_path)
    assert status.runs(tmp_path) is True
    state.close()
    assert status.runs(tmp_path) is False
    (tmp_path / status.FILE).write_text('{"at_s": 1}')
    with pytest.raises(ConfigError, match="another version"):
        status.read(tmp_path)


def test_the_status_command_says_whether_a_node_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask_status(folder: Path, *more: str) -> str:
        monkeypatch.setattr(sys, "argv", ["thinwire-node", "status", "--state-dir", str(folder), *more])
        main()
        return capsys.readouterr().out

    with pytest.raises(SystemExit):
        ask_status(tmp_path / "nobody")
    assert "nobody: no node has run here; give the node's --state-dir" in capsys.readouterr().err
    assert not (tmp_path / "nobody").exists()
    status.write(tmp_path, replace(REPORT, at_s=time.time()))
    state = NodeState(tmp_path)
    assert ask_status(tmp_path).splitlines()[-1] == "the node is running"
    state.close()
    assert "the node is not running; it ended without leaving" in ask_status(tmp_path)
    assert json.loads(ask_status(tmp_path, "--json"))["bytes"]["sent"] == REPORT.bytes.sent
