"""The service and the containers can do little besides training: what systemd and Docker are told."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
EXPOSURE_MAX = 2.0
"""Of 10, by `systemd-analyze security`. It counts the network and the GPU, which a node needs."""
SET = {
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "PrivateTmp": "yes",
    "SystemCallArchitectures": "native",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
}


def settings(unit: Path) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in unit.read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_service_is_hardened(unit: Path) -> None:
    found = settings(unit)
    assert {name: found[name] for name in SET} == {name: [value] for name, value in SET.items()}
    assert found["DynamicUser"] == ["yes"] or found["User"] == ["thinwire"]
    assert found["PrivateDevices"] == ["yes"] or found["DevicePolicy"] == ["closed"]
    assert found["MemoryMax"]
    assert found["TasksMax"]
    assert not found["Nice"]  # the node sets its own, and could not rise above this one
    assert found["SystemCallFilter"] == ["@system-service", "~@privileged listen"]
    # TCP over IPv6 is left: gRPC binds [::1] for a moment, and takes IPv6 for missing where it may not
    assert found["SocketBindDeny"] == ["ipv4", "udp"]
    assert "SocketBindAllow" not in found
    assert not {"AF_PACKET", "AF_BLUETOOTH"} & set(found["RestrictAddressFamilies"][0].split())


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], check=False, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_no_mistake_and_little_exposure(unit: Path, tmp_path: Path) -> None:
    program = shutil.which("true")
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={program}", unit.read_text(encoding="utf-8"), flags=re.MULTILINE)
    copy = tmp_path / unit.name
    copy.write_text(text, encoding="utf-8")
    verified = analyze("verify", "--man=no", str(copy))
    assert (verified.returncode, verified.stderr) == (0, "")
    said = analyze("security", "--offline=true", "--no-pager", str(copy))
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", said.stdout)
    assert exposure is not None, said.stdout + said.stderr
    assert float(exposure[1]) <= EXPOSURE_MAX


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    return found


@pytest.mark.parametrize("name", ["coordinator", "node"])
def test_the_containers_are_hardened(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] <= 1024
    assert service["mem_limit"]
    assert "privileged" not in service
    assert "cap_add" not in service
    assert not any("docker.sock" in str(volume) for volume in service["volumes"])


@pytest.mark.parametrize("name", sorted(services()))
def test_the_logs_of_a_container_are_bounded(name: str) -> None:
    """A node that runs for months would fill the disk that its state is on."""
    logging = services()[name]["logging"]
    assert logging["driver"] == "json-file"
    assert logging["options"] == {"max-size": "20m", "max-file": "3"}


def test_the_container_of_a_node_publishes_no_port() -> None:
    assert "ports" not in services()["node"]
    assert "network_mode" not in services()["node"]


def test_the_image_does_not_run_as_root() -> None:
    users = re.findall(r"^USER (.*)$", (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert users == ["10001:10001"]
