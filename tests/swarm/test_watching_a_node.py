"""Tests that a node in a real swarm shows the same numbers everywhere, and the same as the coordinator."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.local_swarm.processes import BIN
from support.real import PATIENCE_S, RESTING, RealSwarm, ended, run_text, until
from support.screen import Screen
from thinwire_common.ready_file import READY_FILE
from thinwire_common.units import human_bytes
from thinwire_node.observe.definitions import METRICS

STEPS = 150
LENGTH_S = 20
RUN = run_text(STEPS, length_ms=LENGTH_S * 1000)

Values = dict[tuple[str, ...], float]


@pytest.fixture
def screen() -> Iterator[Screen]:
    found = Screen(100, 30)
    yield found
    found.close()


def metrics(url: str) -> dict[str, Values]:
    """Metric values by name, and then by the values of their labels."""
    found: dict[str, Values] = {}
    with urllib.request.urlopen(url, timeout=10) as answer:
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def told(swarm: RealSwarm, name: str) -> dict[str, Any]:
    """The report of `thinwire-node status --json` on a node."""
    done = status_command(swarm, name, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def status_command(swarm: RealSwarm, name: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "thinwire-node"), "status", "--state-dir", str(swarm.folder / name), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def node_of(swarm: RealSwarm, name: str) -> Any:
    return next(node for node in swarm.status().nodes if node.name == name)


def test_log_metrics_terminal_and_status_agree_with_the_coordinator(swarm: RealSwarm, screen: Screen) -> None:
    """Node `logged` is observed by HTTP and by its log, node `shown` on its terminal, and both by `status`."""
    coordinator = swarm.coordinator(RUN, "--wait-for", "2", "--http", "off")
    logged = swarm.node("logged", "--metrics", "0")
    command = [str(BIN / "thinwire-node"), "start", swarm.invitation, "--name", "shown", "--threads", "1"]
    # the view is drawn once a second; a node that did not rest could end the run before
    shown = screen.start(*command, "--state-dir", str(swarm.folder / "shown"), *RESTING)
    try:
        screen.shows(lambda lines: re.search(r"^counted +[1-9]", "\n".join(lines), re.MULTILINE))
        text = "\n".join(screen.lines())
        assert "joined at" in text
        assert text.count("thinwire · shown · ") == 1

        # the numbers do not change while the round waits for a stopped node
        shown.send_signal(signal.SIGSTOP)
        ready = logged.ready(swarm.folder / "logged")
        assert ready is not None, logged.text()
        assert (ready["name"], ready["address"]) == ("logged", swarm.address)
        address = ready["metrics"]
        until(lambda: _rests(metrics(address)), "the round waits", logged)
        found = metrics(address)
        _check_payload(found, node_of(swarm, "logged"))
        elsewhere = ("gossip run", "a node of several")
        promised = {family.name for family in METRICS if not any(words in family.help for words in elsewhere)}
        assert promised <= {name.removesuffix("_bucket") for name in found}
        assert found["thinwire_node_state"][("delivering",)] == 1
        assert sum(found["thinwire_node_state"].values()) == 1
        assert found["thinwire_node_queue_depth"][("deliver",)] == 1
        assert found["thinwire_node_step"][()] == swarm.status().step
        trained = found["thinwire_node_phase_seconds_count"]
        assert trained[("compute",)] == trained[("encode",)] == trained[("upload",)] + 1
        for path in ("/livez", "/readyz"):
            with urllib.request.urlopen(address.replace("/metrics", path), timeout=10) as answer:
                assert json.load(answer) == {"state": "delivering", "words": "delivering: waiting for the receipt"}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address + "/../..", timeout=10)
        assert "the node is running" in status_command(swarm, "logged").stdout
        shown.send_signal(signal.SIGCONT)
        screen.type(b"\x03")
        assert shown.wait(PATIENCE_S) == 0
    finally:
        shown.kill()
        shown.wait()
    _check_the_last_view(swarm, screen)
    assert ended(logged) == 0
    assert not (swarm.folder / "logged" / READY_FILE).exists()
    _check_the_end(swarm, logged.text())
    assert [event["step"] for event in coordinator.events("coordinator.run_complete")] == [STEPS]


def _rests(found: dict[str, Values]) -> bool:
    """Whether the round is older than two seconds. Rounds without a stopped node take a fraction of a second."""
    return 0 < found.get("thinwire_node_round_left_seconds", {}).get((), 0) < LENGTH_S - 2


def entries(log: str) -> list[dict[str, Any]]:
    """The entries of a JSON log."""
    found = [json.loads(line) for line in log.splitlines()]
    assert all({"time", "level", "logger", "message"} <= entry.keys() for entry in found)
    return found


def _check_payload(found: dict[str, Values], node: Any) -> None:
    passed = found["thinwire_node_payload_bytes_total"]
    fetched = passed[("received", "corpus")] + passed[("received", "snapshot")]
    ours = passed[("sent", "contribution")], passed[("received", "update")], fetched
    assert ours == (node.bytes_up, node.bytes_down, node.bytes_fetched)
    assert all(ours)


def _check_the_last_view(swarm: RealSwarm, screen: Screen) -> None:
    """The last view stays on the screen, complete, with the cursor below it."""
    lines = screen.lines()
    text = "\n".join(lines)
    assert text.count("thinwire · ") == 1
    assert "thinwire · shown · left" in lines
    assert "Traceback" not in text
    assert screen.cursor == (0, len(lines))
    report = told(swarm, "shown")
    assert report["state"] == "left"
    assert f"up           {human_bytes(sum(report['bytes']['sent'].values()))}," in text
    assert f"down         {human_bytes(sum(report['bytes']['received'].values()))}," in text
    assert f"counted      {report['given']['counted']} of" in text
    # the view must not hide the cursor or clear the screen, which belong to other programs
    assert b"\x1b[?25l" not in screen.written
    assert b"\x1b[2J" not in screen.written


def _check_the_end(swarm: RealSwarm, log: str) -> None:
    """After the end of the run, all counts agree to the byte."""
    status, node, report = swarm.status(), node_of(swarm, "logged"), told(swarm, "logged")
    assert (status.state, status.step) == ("complete", STEPS)
    sent, received = report["bytes"]["sent"], report["bytes"]["received"]
    assert (sent["contribution"], received["update"]) == (node.bytes_up, node.bytes_down)
    assert received["corpus"] + received["snapshot"] == node.bytes_fetched
    assert (report["given"]["counted"], report["given"]["tokens"]) == (node.counted, node.tokens)
    # bytes on the wire also include acknowledgements and headers
    assert sum(sent.values()) < report["bytes"]["wire_sent"]
    down = sum(received.values())
    assert down < report["bytes"]["wire_received"] < 1.05 * down + 100_000

    said = status_command(swarm, "logged").stdout
    assert re.search(rf"contribution +{node.bytes_up:,} +0", said)
    assert re.search(rf"update +\d+ +{node.bytes_down:,}", said)
    assert "the node is not running; it left" in said
    last = entries(log)[-1]
    assert (last["event"], last["sent_bytes"], last["received_bytes"]) == ("node.totals", sum(sent.values()), down)
