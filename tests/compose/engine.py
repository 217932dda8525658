"""Runs docker-compose.yml on a real engine and queries its Prometheus. All containers are removed at the end."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from deploy.local_swarm.ports import free_addresses

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PATIENCE_S = 180.0
LOOK_EVERY_S = 0.5
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

Found = TypeVar("Found")
Samples = list[dict[str, Any]]


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def until(look: Callable[[], Found], what: str, patience_s: float = PATIENCE_S) -> Found:
    """Call `look` until its result is true, and return the result."""
    began = time.monotonic()
    while not (found := look()):
        assert time.monotonic() - began < patience_s, f"did not happen within {patience_s:g} s: {what}"
        time.sleep(LOOK_EVERY_S)
    say(f"{what}, after {time.monotonic() - began:.0f} s")
    return found


def run(*command: str, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output. Fails, with the output, if the command fails."""
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def compose_command() -> list[str]:
    """The command of Compose, version 1 or 2. Skips the test if Compose or a running engine is missing."""
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip("docker is installed, but no engine answers")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    pytest.skip("neither docker-compose nor `docker compose` is installed")


def _image(service: str) -> str:
    """The default image of a service in docker-compose.yml."""
    name: str = COMPOSE["services"][service]["image"]
    return name.partition(":-")[2].removesuffix("}")


def _can_be_had(image: str) -> bool:
    return any(
        subprocess.run(["docker", *how, image], capture_output=True, check=False).returncode == 0
        for how in (("image", "inspect"), ("pull", "--quiet"))
    )


def settings() -> dict[str, str]:
    """The environment for Compose: free ports, test images, and replacements for images that cannot be pulled."""
    names = ("THINWIRE_PORT", "THINWIRE_HTTP_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")
    ports = (address.rpartition(":")[2] for address in free_addresses(len(names)))
    chosen = dict(zip(names, ports, strict=True))
    chosen |= {"COMPOSE_PROJECT_NAME": "thinwire-test", "THINWIRE_IMAGE": "thinwire-test"}
    chosen["THINWIRE_RUN"] = "./tests/compose/run.toml"
    if "PROMETHEUS_IMAGE" not in os.environ and not _can_be_had(_image("prometheus")):
        chosen["PROMETHEUS_IMAGE"] = stand_in = "thinwire-test-prometheus"
        say(f"{_image('prometheus')} cannot be pulled: using Debian's Prometheus instead")
        run("docker", "build", "--tag", stand_in, "--file", str(HERE / "prometheus.Dockerfile"), str(HERE))
    with_grafana = _can_be_had(_image("grafana"))
    chosen["COMPOSE_PROFILES"] = "grafana" if with_grafana else ""
    if not with_grafana:
        say(f"{_image('grafana')} cannot be pulled: starting without Grafana")
    if "TORCH_INDEX" not in os.environ and not _reachable(CPU_INDEX):
        say(f"{CPU_INDEX} cannot be reached: installing torch from the package index")
        chosen["TORCH_INDEX"] = ""
    return chosen


def _reachable(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/torch/", timeout=10):
            return True
    except OSError:
        return False


class Swarm:
    """A Compose project. disk: folder of the coordinator's volume."""

    def __init__(self, disk: Path) -> None:
        self._command = [*compose_command(), "-f", "docker-compose.yml", "-f", "tests/compose/small_disk.yml"]
        self.settings = settings()
        # Compose 1 is a Python program, whose package `compose` this folder would hide
        outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.env = outside | self.settings | {"SMALL_DISK": str(disk)}
        self.has_grafana = bool(self.settings["COMPOSE_PROFILES"])

    def compose(self, *arguments: str) -> str:
        return run(*self._command, *arguments, env=self.env)

    def in_foreground(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start Compose in the foreground, as at a terminal. SIGINT stands for Ctrl-C."""
        return subprocess.Popen(
            [*self._command, *arguments], cwd=ROOT, env=self.env, stdout=sys.stdout, start_new_session=True
        )

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "--quiet", service).split()

    def state(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run("docker", "inspect", "--format", "{{json .State}}", container))
        return found

    def healthy(self, services: tuple[str, ...], nodes: int) -> bool:
        containers = [name for service in services for name in self.containers(service)]
        states = [self.state(container) for container in containers]
        wanted = len(services) - 1 + nodes
        return len(states) == wanted and all(state.get("Health", {}).get("Status") == "healthy" for state in states)

    def http(self, variable: str, path: str) -> Any:
        """Ask a port that Compose publishes. The coordinator's is checked by the authority in its volume."""
        own = variable == "THINWIRE_HTTP_PORT"
        authority = self.compose("exec", "-T", "coordinator", "cat", "/tls/ca.pem") if own else None
        context = ssl.create_default_context(cadata=authority) if own else None
        address = f"{'https' if own else 'http'}://127.0.0.1:{self.settings[variable]}{path}"
        with urllib.request.urlopen(address, timeout=10, context=context) as reply:
            return json.load(reply)

    # queries of Prometheus

    def ask(self, expression: str) -> Samples:
        """The samples of an instant query. Fails if Prometheus rejects the expression."""
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            found: Samples = self.http("PROMETHEUS_PORT", path)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        return found

    def number(self, expression: str) -> float:
        """The value of the first sample, or NaN if there is none."""
        samples = self.ask(expression)
        return float(samples[0]["value"][1]) if samples else float("nan")

    def targets(self) -> dict[str, int]:
        """Number of targets that are up, by job. A target that is down makes the number negative."""
        active = self.http("PROMETHEUS_PORT", "/api/v1/targets")["data"]["activeTargets"]
        jobs: dict[str, int] = {}
        for target in active:
            job = target["labels"]["job"]
            jobs[job] = jobs.get(job, 0) + (1 if target["health"] == "up" else -1000)
        return jobs

    def firing(self) -> set[str]:
        return {sample["metric"]["alertname"] for sample in self.ask('ALERTS{alertstate="firing"}')}

    def rules(self) -> dict[str, str]:
        """The expression of each alert, as loaded by Prometheus."""
        groups = self.http("PROMETHEUS_PORT", "/api/v1/rules?type=alert")["data"]["groups"]
        return {rule["name"]: rule["query"] for group in groups for rule in group["rules"]}
