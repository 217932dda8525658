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
from rich.text import Text

from support.reports import small_report
from thinwire_common.tcp import End, wire_counts
from thinwire_common.traffic import Traffic
from thinwire_common.units import human_bytes, human_seconds
from thinwire_node.__main__ import main
from thinwire_node.daemon import Node
from thinwire_node.observe import status
from thinwire_node.observe.reporter import Reporter
from thinwire_node.observe.view import byte_lines, lines, one_line
from thinwire_node.report import TAKES_PART, Edge, Peers
from thinwire_node.session.record import Record, tell_totals
from thinwire_node.settings import NodeOptions, NodeSettings
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


def test_the_view_shows_every_figure() -> None:
    assert [human_bytes(count) for count in (0, 999, 1000, 1.7e6, 2e13)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.7 MB",
        "20.0 TB",
    ]
    assert [human_seconds(s) for s in (0.0004, 3.21, 45, 300, 9000, 800_000)] == [
        "0.4 ms",
        "3.2 s",
        "45 s",
        "5 minutes",
        "2 hours",
        "9 days",
    ]
    assert one_line(REPORT) == (
        "training; round 118; step 117 of 200; loss 2.412; 13,100 tokens/s; up 1.7 MB; down 4.5 MB; 117 counted, 1 not"
    )
    bytes_told = "\n".join(line.plain for line in byte_lines(REPORT, 80))
    assert "payload             1,701,000       4,500,000" in bytes_told
    assert "wire: TCP of the connections to the coordinator" in bytes_told
    unread = replace(REPORT, bytes=replace(REPORT.bytes, wire_sent=None, wire_received=None))
    assert not any("wire" in line.plain for line in byte_lines(unread, 80))
    troubled = replace(REPORT, given=replace(REPORT.given, resyncs=2, dropped=3, too_old=4))
    text = _plain(lines(troubled, 100))
    assert "not counted  1, most recently: the round is over" in text
    assert [line.split()[0] for line in text.splitlines()[-3:]] == ["dropped", "too", "resyncs"]


def _plain(found: list[Text]) -> str:
    return "\n".join(line.plain for line in found)


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
    ("doing", "state"),
    [
        ("starting", "starting"),
        ("connecting", "connecting"),
        ("fetching the weights of the base", "fetching"),
        ("taking up the replica", "starting"),
        ("left", "left"),
    ],
)
def test_a_node_without_a_session_takes_no_part(doing: str, state: str) -> None:
    """So /readyz does not say 200 while the model is loaded."""
    node = Node(NodeSettings("127.0.0.1:1", Path(), "cpu", NodeOptions("x", 8, None), None))
    node.doing = doing
    report = Reporter(node).report()
    assert (report.state, report.words) == (state, doing)
    assert report.state not in TAKES_PART


def test_the_totals_are_those_of_the_process(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "thinwire.node"):
        tell_totals(Record(counted=7), "7 iterations")
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith("since this process began: 7 iterations, 0 micro-batches dropped")


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
