"""docker-compose.yml on a real engine, and what its Prometheus says of it. Everything is removed at the end."""

from __future__ import annotations

import json
import os
import shutil
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

from deploy.local_swarm.prometheus import free_addresses

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
    """What `look` finds, as soon as it finds something."""
    began = time.monotonic()
    while not (found := look()):
        assert time.monotonic() - began < patience_s, f"not within {patience_s:g} s: {what}"
        time.sleep(LOOK_EVERY_S)
    say(f"{what}, after {time.monotonic() - began:.0f} s")
    return found


def run(*command: str, env: Mapping[str, str] | None = None) -> str:
    """Its output; what it says meanwhile is shown only if it fails."""
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def compose_command() -> list[str]:
    """Compose, of whichever version there is; skips where there is none, or no engine."""
    if shutil.which("docker") is None:
        pytest.skip("there is no docker here")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip("docker is here, but no engine answers")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    pytest.skip("neither docker-compose nor `docker compose` is here")


def _image(service: str) -> str:
    """What docker-compose.yml has by default."""
    name: str = COMPOSE["services"][service]["image"]
    return name.partition(":-")[2].removesuffix("}")


def _can_be_had(image: str) -> bool:
    return any(
        subprocess.run(["docker", *how, image], capture_output=True, check=False).returncode == 0
        for how in (("image", "inspect"), ("pull", "--quiet"))
    )


def settings() -> dict[str, str]:
    """The environment for compose: free ports, images of its own, and stand-ins for what cannot be had here."""
    names = ("THINWIRE_PORT", "THINWIRE_HTTP_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")
    ports = (address.rpartition(":")[2] for address in free_addresses(len(names)))
    chosen = dict(zip(names, ports, strict=True))
    chosen |= {"COMPOSE_PROJECT_NAME": "thinwire-test", "THINWIRE_IMAGE": "thinwire-test"}
    chosen["THINWIRE_RUN"] = "./tests/compose/run.toml"
    if "PROMETHEUS_IMAGE" not in os.environ and not _can_be_had(_image("prometheus")):
        chosen["PROMETHEUS_IMAGE"] = stand_in = "thinwire-test-prometheus"
        say(f"{_image('prometheus')} cannot be had: Debian's Prometheus stands in")
        run("docker", "build", "--tag", stand_in, "--file", str(HERE / "prometheus.Dockerfile"), str(HERE))
    with_grafana = _can_be_had(_image("grafana"))
    chosen["COMPOSE_PROFILES"] = "grafana" if with_grafana else ""
    if not with_grafana:
        say(f"{_image('grafana')} cannot be had: the rest is started without it")
    if "TORCH_INDEX" not in os.environ and not _reachable(CPU_INDEX):
        say(f"{CPU_INDEX} cannot be reached: torch comes from the package index")
        chosen["TORCH_INDEX"] = ""
    return chosen


def _reachable(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/torch/", timeout=10):
            return True
    except OSError:
        return False


class Swarm:
    """A project of compose. `disk`: where the coordinator's volume lies."""

    def __init__(self, disk: Path) -> None:
        self._command = [*compose_command(), "-f", "docker-compose.yml", "-f", "tests/compose/small_disk.yml"]
        self.settings = settings()
        self.env = dict(os.environ) | self.settings | {"SMALL_DISK": str(disk)}
        self.has_grafana = bool(self.settings["COMPOSE_PROFILES"])

    def compose(self, *arguments: str) -> str:
        return run(*self._command, *arguments, env=self.env)

    def in_foreground(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Started as somebody at a terminal would; Ctrl-C is a SIGINT to it."""
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
        address = f"http://127.0.0.1:{self.settings[variable]}{path}"
        with urllib.request.urlopen(address, timeout=10) as reply:
            return json.load(reply)

    # what Prometheus says

    def ask(self, expression: str) -> Samples:
        """The samples of an instant query; fails on one that Prometheus does not understand."""
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            found: Samples = self.http("PROMETHEUS_PORT", path)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        return found

    def number(self, expression: str) -> float:
        """Of the one sample; NaN while there is none."""
        samples = self.ask(expression)
        return float(samples[0]["value"][1]) if samples else float("nan")

    def targets(self) -> dict[str, int]:
        """How many targets are up, by job; none may be down."""
        active = self.http("PROMETHEUS_PORT", "/api/v1/targets")["data"]["activeTargets"]
        jobs: dict[str, int] = {}
        for target in active:
            job = target["labels"]["job"]
            jobs[job] = jobs.get(job, 0) + (1 if target["health"] == "up" else -1000)
        return jobs

    def firing(self) -> set[str]:
        return {sample["metric"]["alertname"] for sample in self.ask('ALERTS{alertstate="firing"}')}

    def rules(self) -> dict[str, str]:
        """The expression of each alert, as Prometheus has read it."""
        groups = self.http("PROMETHEUS_PORT", "/api/v1/rules?type=alert")["data"]["groups"]
        return {rule["name"]: rule["query"] for group in groups for rule in group["rules"]}
