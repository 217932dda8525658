"""Tests the Compose swarm on a real engine. Each test continues where the previous one ended.

`make test-compose` runs these tests; `make test-all` does not. The coordinator's volume is on a separate small disk
that a test can fill, and the run has rounds of two seconds on a clock. Everything else is docker-compose.yml as it is.
"""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose.engine import HERE, Swarm, run, say, until
from deploy.dashboards.__main__ import descriptions
from support.disks import FILLER, small_disk

NODES = 4
DISK_MB = 400
LEFT_BYTES = 4 << 20
ROUNDS = 30
FORECAST_AFTER_S = 600
"""How long Prometheus watches a disk before DiskFillsUp may fire."""
SERVICES = ("coordinator", "prometheus", "node")
QUIET = {"NoSealedRound", "ReplicaDiffers", "TargetDown", "NodeGone", "DiskTooSmall"}
"""Alerts that must not fire in a healthy swarm, even on a loaded machine."""
raised: set[str] = set()
"""Alerts that have fired so far, with an expression that returned data."""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_disk(tmp_path_factory.mktemp("compose") / "disk", DISK_MB) as folder:
        yield folder


@pytest.fixture(scope="module")
def swarm(disk: Path) -> Iterator[Swarm]:
    swarm = Swarm(disk)
    swarm.compose("down", "--volumes", "--remove-orphans")
    try:
        yield swarm
    finally:
        swarm.compose("down", "--volumes", "--remove-orphans")


@pytest.fixture(autouse=True)
def _begun(swarm: Swarm, request: pytest.FixtureRequest) -> None:
    """Skip a test if an earlier one has failed, because each test depends on the previous ones."""
    if request.session.testsfailed:
        pytest.skip("an earlier test has failed")
    say(f"— {request.node.name}")


def fires(swarm: Swarm, *alerts: str) -> None:
    """Wait until each of these alerts has fired and its expression has returned data, not necessarily all at once."""
    expressions, missing = swarm.rules(), set(alerts)

    def all_have() -> bool:
        for alert in missing & swarm.firing():
            if swarm.ask(expressions[alert]):
                missing.discard(alert)
                say(f"{alert} fires")
        return not missing

    until(all_have, f"{', '.join(alerts)} fired", 240)
    raised.update(alerts)


def clears(swarm: Swarm, *alerts: str) -> None:
    until(lambda: not set(alerts) & swarm.firing(), f"{', '.join(alerts)} cleared", 240)


def faulty(swarm: Swarm, fault: str) -> str:
    """Start one more node, with a fault. Returns the name of its container."""
    script = f"{HERE}/faulty_node.py:/faulty_node.py:ro"
    command = ("python", "/faulty_node.py", fault, "start", "@/invite/nodes")
    options = ("--no-deps", "--use-aliases", "--volume", script, "-d")
    settings = ("--state-slots=/state", "--metrics=0.0.0.0:7702", "--metrics-tls=/tls")
    return swarm.compose("run", *options, "node", *command, *settings).split()[-1]


def test_the_swarm_builds_and_becomes_healthy(swarm: Swarm) -> None:
    swarm.compose("build")
    size_bytes = int(run("docker", "image", "inspect", "--format", "{{.Size}}", "thinwire-test"))
    say(f"the image has {size_bytes / 1e9:.2f} GB, including its base image")
    swarm.compose("up", "-d", "--scale", f"node={NODES}")
    until(lambda: swarm.healthy(SERVICES, NODES), f"coordinator, Prometheus and {NODES} nodes are healthy")


def test_nothing_runs_as_root_and_memory_is_limited(swarm: Swarm) -> None:
    for service in SERVICES:
        for container in swarm.containers(service):
            form = "{{.Config.User}} {{.HostConfig.Memory}} {{.HostConfig.CapDrop}}"
            user, memory, dropped = run("docker", "inspect", "--format", form, container).split()
            assert user.partition(":")[0] not in ("", "0", "root")
            assert int(memory) > 0
            assert dropped == "[ALL]"


def test_the_processes_can_do_little_else(swarm: Swarm) -> None:
    """As the kernel sees it: no capabilities, none to be had, filtered system calls, and a read-only root."""
    confined = {"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"}
    for container in swarm.containers("coordinator") + swarm.containers("node"):
        status = run("docker", "exec", container, "cat", "/proc/1/status")
        assert confined <= set(status.splitlines())
        wrote = subprocess.run(["docker", "exec", container, "touch", "/here"], capture_output=True, check=False)
        assert b"Read-only file system" in wrote.stderr


def test_all_targets_are_up_and_thirty_rounds_are_sealed(swarm: Swarm) -> None:
    wanted = {"coordinator": 1, "node": NODES, "prometheus": 1}
    until(lambda: swarm.targets() == wanted, f"all targets are up: {wanted}")
    until(lambda: swarm.number("thinwire_coordinator_step") >= ROUNDS, f"{ROUNDS} rounds are sealed", 300)
    names = {sample["metric"]["name"] for sample in swarm.ask("thinwire_node_info")}
    assert names == {f"node-{number}" for number in range(NODES)}
    assert not swarm.firing() & QUIET


def test_every_expression_of_every_dashboard_returns_data(swarm: Swarm) -> None:
    """But for those about gossip runs, whose metrics tests/gossip/swarm/test_gossip_swarm.py looks at."""
    instance = swarm.ask("thinwire_node_info")[0]["metric"]["instance"]
    asked, empty = 0, []
    for name, dashboard in descriptions().items():
        panels = [panel for row in dashboard["rows"] if row["title"] != "Gossip runs" for panel in row["panels"]]
        for title, expr in [(panel["title"], expr) for panel in panels for expr in panel["queries"].values()]:
            expression = expr.replace("$__rate_interval", "30s").replace("$node", instance)
            assert "$" not in expression
            values = [float(sample["value"][1]) for sample in swarm.ask(expression)]
            asked += 1
            if all(math.isnan(value) for value in values):
                empty.append(f"{name}, {title}: {expression}")
    assert not empty
    say(f"{asked} expressions return data")


def test_grafana_shows_the_dashboards_without_a_login(swarm: Swarm) -> None:
    if not swarm.has_grafana:
        pytest.skip("Grafana's image cannot be pulled")
    found = until(lambda: swarm.http("GRAFANA_PORT", "/api/search?type=dash-db"), "Grafana has dashboards")
    assert {entry["uid"] for entry in found} == {f"thinwire-{name}" for name in descriptions()}


def test_a_killed_node_raises_an_alert_that_clears_when_it_returns(swarm: Swarm) -> None:
    run("docker", "kill", swarm.containers("node")[1])
    fires(swarm, "NodeGone")
    swarm.compose("up", "-d", "--scale", f"node={NODES}")
    clears(swarm, "NodeGone")
    assert len(swarm.ask("thinwire_node_info")) == NODES


def test_a_differing_replica_and_late_uploads_raise_alerts(swarm: Swarm) -> None:
    began = [faulty(swarm, fault) for fault in ("flips", "dawdles", "dawdles", "dawdles")]
    fires(swarm, "ReplicaDiffers", "UploadCloseToDeadline", "ContributionsLate")
    assert swarm.number("thinwire_coordinator_fingerprints_compared_total{result='different'}") >= 1
    run("docker", "rm", "--force", *began)
    clears(swarm, "UploadCloseToDeadline")


def test_a_coordinator_that_hangs_raises_an_alert(swarm: Swarm) -> None:
    (coordinator,) = swarm.containers("coordinator")
    run("docker", "pause", coordinator)
    fires(swarm, "TargetDown")
    run("docker", "unpause", coordinator)
    clears(swarm, "TargetDown")


def test_rounds_without_nodes_raise_alerts(swarm: Swarm) -> None:
    swarm.compose("stop", "node")
    fires(swarm, "NoSealedRound", "RoundsVoid")
    swarm.compose("up", "-d", "--scale", f"node={NODES}")
    clears(swarm, "NoSealedRound")


def test_a_disk_that_fills_up_raises_alerts(swarm: Swarm, disk: Path) -> None:
    watched = f"thinwire_coordinator_disk_free_bytes offset {FORECAST_AFTER_S}s"
    until(lambda: bool(swarm.ask(watched)), "Prometheus has watched the disk for long enough", FORECAST_AFTER_S)
    filler = disk / FILLER
    # enough space for a while, but not for the rest of the run
    run("fallocate", "--length", str(shutil.disk_usage(disk).free - LEFT_BYTES), str(filler))
    fires(swarm, "DiskTooSmall", "DiskFillsUp")
    filler.unlink()
    clears(swarm, "DiskTooSmall")


def test_every_alert_was_raised(swarm: Swarm) -> None:
    assert raised == set(swarm.rules()) - {"RunDiverged"}  # tests/swarm/test_diverged.py raises it


def test_the_run_continues_after_down_and_up(swarm: Swarm) -> None:
    before = swarm.number("thinwire_coordinator_step")
    swarm.compose("down")
    foreground = swarm.in_foreground("up", "--scale", f"node={NODES}")
    try:
        until(lambda: swarm.healthy(SERVICES, NODES), f"coordinator, Prometheus and {NODES} nodes are healthy again")
        until(
            lambda: swarm.number("thinwire_coordinator_step") > before + 3, f"rounds continue after step {before:.0f}"
        )
        # each node found its parameters on disk, so none fetched a snapshot
        assert swarm.number('thinwire_coordinator_payload_bytes_total{direction="sent",kind="snapshot"}') == 0
        assert swarm.number('thinwire_coordinator_fingerprints_compared_total{result="different"}') == 0
        containers = [container for service in SERVICES for container in swarm.containers(service)]
        foreground.send_signal(signal.SIGINT)
        foreground.wait(60)
    finally:
        if foreground.poll() is None:
            foreground.kill()
            foreground.wait()
    until(lambda: not any(swarm.state(name)["Running"] for name in containers), "Ctrl-C ends all containers", 60)
    ends = {swarm.state(name)["ExitCode"] for name in containers}
    assert ends == {0}, "a process was killed or crashed"


def test_the_ledger_verifies(swarm: Swarm) -> None:
    command = ("thinwire-coordinator", "verify", "--state-dir", "/state")
    say(swarm.compose("run", "--no-deps", "--rm", "coordinator", *command).strip().splitlines()[-1])
