"""A small swarm from a wheel: a coordinator and two nodes, from `init` to `verify`, as docs/organizer.md has it."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

from deploy.local_swarm.processes import JSON_LOG, Process, SwarmError, left_with
from deploy.release.artifacts import Environment

NODES = 2
STEPS = 3
PATIENCE_S = 300.0
"""For a start; the first one of an environment compiles torch's modules."""
RUN = f"""[model]
width = 64
layers = 1
heads = 2
hidden = 64
context = 64

[schedule]
steps = {STEPS}
warmup_steps = 1
"""
LEAVE_S = 8.0
PROGRAMS = ("thinwire", "thinwire-coordinator", "thinwire-node")
ASSET = re.compile(r'(?:src|href)="(/?[^":]+\.(?:js|css|svg))"')


def try_swarm(environment: Environment, folder: Path) -> str:
    """Run the swarm until its ledger is complete and verified. Returns what `verify` said of it.

    Raises SwarmError if a program is missing or fails, the page lacks a file, or the replicas differ."""
    for program in PROGRAMS:
        environment.said(program, "--version")
    run, state, invite = folder / "run.toml", folder / "coordinator", folder / "invite"
    run.write_text(RUN, encoding="utf-8")
    command = ["thinwire-coordinator", "serve", "--run", str(run), "--state-dir", str(state)]
    command += ["--listen", "127.0.0.1:0", "--wait-for", str(NODES), "--invite-file", str(invite), *JSON_LOG]
    started = [Process("coordinator", command, folder / "coordinator.log", environment.start)]
    try:
        ready = started[0].wait_until_ready(state, PATIENCE_S)
        _check_page(str(ready["page"]))
        for number in range(NODES):
            command = ["thinwire-node", "start", f"@{invite}", "--state-dir", str(folder / f"node-{number}")]
            command += ["--threads", "1", "--give-up-after", "30", *JSON_LOG]
            started.append(Process(f"node-{number}", command, folder / f"node-{number}.log", environment.start))
        nodes = started[1:]
        for node in nodes:
            if node.popen.wait(PATIENCE_S) != 0:
                raise SwarmError(f"{node.name} failed:\n{node.tail(20)}")
    finally:
        for process in reversed(started):
            process.end(LEAVE_S)
    replicas = {left_with(node) for node in nodes}
    if len(replicas) != 1 or None in replicas:
        raise SwarmError(f"the replicas of the nodes differ, or one did not end: {replicas}")
    verified = environment.said("thinwire-coordinator", "verify", "--state-dir", str(state))
    line = next((line for line in verified.splitlines() if line.startswith("replayed")), "")
    if f"{STEPS} updates" not in line:
        raise SwarmError(f"the ledger does not have {STEPS} updates: {verified}")
    return line


def _check_page(url: str) -> None:
    """Raise SwarmError if the page, or a file that it names, is not served."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    names = ASSET.findall(text)
    if not names:
        raise SwarmError(f"the page at {url} names no scripts and no styles")
    for name in names:
        try:
            opener.open(f"{url.rstrip('/')}/{name.lstrip('/')}", timeout=PATIENCE_S).close()
        except urllib.error.HTTPError as error:
            raise SwarmError(f"{name} of the page: {error}") from None
