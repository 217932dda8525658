"""Tests /livez and /readyz of real processes: a process that is starting is alive but not ready."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

from deploy.local_swarm.ports import free_addresses
from deploy.local_swarm.processes import Process
from support.prometheus import parsed, value
from support.real import RealSwarm, ended, until
from support.sealed_run import make_run


def answers(address: str, path: str) -> int | None:
    """The status code, or None if nothing listens at the address."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            json.load(answer)
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None


def serve(swarm: RealSwarm, http: str) -> Process:
    command = ["thinwire-coordinator", "serve", "--state-dir", str(swarm.state), "--listen", "127.0.0.1:0"]
    return swarm.start("coordinator", *command, "--http", http)


def test_a_replaying_coordinator_is_alive_but_not_ready(swarm: RealSwarm) -> None:
    swarm.state.mkdir()
    make_run(swarm.state, 3)
    body = _body_that_blocks(swarm.state)
    (http,) = free_addresses(1)
    coordinator = serve(swarm, http)
    until(lambda: answers(http, "/livez") == 200, "the coordinator answers", coordinator)
    until(lambda: b"replaying" in _read(http, "/api/status"), "the coordinator replays", coordinator)
    codes = [answers(http, path) for path in ("/livez", "/readyz")]
    assert codes == [200, 503]
    assert value(parsed(_read(http, "/metrics").decode()), "thinwire_coordinator_state", state="starting") == 1
    coordinator.popen.kill()
    coordinator.popen.wait()

    body.with_suffix(".whole").replace(body)
    coordinator = serve(swarm, http)
    until(lambda: answers(http, "/readyz") == 200, "nodes can join", coordinator)
    assert [answers(http, path) for path in ("/livez", "/readyz")] == [200, 200]
    coordinator.tell(signal.SIGTERM)
    assert ended(coordinator) == 0


def _body_that_blocks(state: Path) -> Path:
    """Replace the newest update's body by a pipe without a writer, so that reading it blocks."""
    body = max((state / "updates").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    body.rename(body.with_suffix(".whole"))
    os.mkfifo(body)
    return body


def _read(address: str, path: str) -> bytes:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.read()
