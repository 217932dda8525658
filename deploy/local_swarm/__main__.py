"""Start a coordinator and some nodes, watch them until they finish, and print a summary."""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import grpc
from rich.console import Console

from deploy.local_swarm.processes import BIN, ENDING, Processes, SwarmError, left_with
from deploy.local_swarm.summary import SwarmOutcome, print_summary
from deploy.local_swarm.view import View
from thinwire_common.number_arguments import count
from thinwire_coordinator.cli.status_client import as_organizer, open_channel
from thinwire_proto.models import PRESETS
from thinwire_proto.wire.service_pb2 import StatusReply, StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

POLL_S = 0.5
STATUS_TIMEOUT_S = 10.0
PROMPT = "def "
BEAT_MS = 2000


def main() -> None:
    arguments = _arguments()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path("runs").absolute() / f"swarm-{stamp}-{os.getpid()}"
    folder.mkdir(parents=True)
    run_file = folder / "run.toml"
    run_file.write_text(_run_text(arguments))
    for number in ENDING:  # SIGINT too, because a process in the background inherits it as ignored
        signal.signal(number, _interrupt)
    try:
        outcome = _run(folder, run_file, arguments.nodes, arguments.metrics, console)
    except SwarmError as error:
        console.print(str(error), style="red")
        console.print(f"logs: {folder}")
        sys.exit(1)
    except KeyboardInterrupt:
        for number in ENDING:  # a second Ctrl-C must not suppress the message and the exit status
            signal.signal(number, signal.SIG_IGN)
        console.print(
            f"\nstopped; all processes have ended. State and logs: {folder}",
        )
        sys.exit(130)
    print_summary(outcome, console)
    sys.exit(0 if outcome.passed else 1)


def _run_text(arguments: argparse.Namespace) -> str:
    """The run file. In a gossip run, the first topology waits for all nodes, and beats are short, to be watched."""
    warmup = min(10, arguments.rounds - 1)
    text = f'[model]\npreset = "{arguments.preset}"\n\n[schedule]\n'
    text += f"steps = {arguments.rounds}\nwarmup_steps = {warmup}\n"
    if arguments.exchange == "gossip":
        text += f"\n[round]\nlength_ms = {BEAT_MS}\nmin_contributions = {arguments.nodes}\n"
        text += '\n[exchange]\nkind = "gossip"\n\n[rule]\nkind = "adamw"\n'
    return text


def _run(folder: Path, run_file: Path, nodes: int, metrics: bool, console: Console) -> SwarmOutcome:
    with Processes(folder, nodes, metrics) as processes:
        console.print(f"starting a coordinator and {nodes} nodes; logs in {folder}")
        address = processes.start_coordinator(run_file)
        console.print(f"the page: {processes.page_url}")
        processes.start_nodes()
        for line in processes.start_prometheus() if metrics else ():
            console.print(line)
        with open_channel(address) as channel:
            stub = SwarmStub(channel)
            seconds = _watch(processes, stub, console)
            status = _last_status(processes, stub, console)
    left = {node.name: left_with(node) for node in processes.nodes}
    without_centre = status.HasField("gossip")
    if status.step < status.steps:
        tails = "\n".join(f"{node.name}:\n{node.tail()}" for node in processes.nodes if node.popen.returncode)
        raise SwarmError(f"the nodes ended at step {status.step} of {status.steps}\n{tails}")
    console.print("all nodes have left; replaying the ledger")
    verified, text = _coordinator_says("verify", processes)
    _, sample = _coordinator_says("sample", processes, "--prompt", PROMPT)
    lines = text.splitlines()
    wanted = "the final mean" if without_centre else "replayed"
    said = next((line for line in lines if line.startswith(wanted)), lines[-1] if lines else "ended without output")
    return SwarmOutcome(status, left, verified, f"verify: {said}", sample, folder, seconds)


def _watch(processes: Processes, stub: SwarmStub, console: Console) -> float:
    """Show the swarm until all nodes have left. Returns the seconds since the first round."""
    started: float | None = None
    with View(console) as view:
        while any(node.running for node in processes.nodes):
            status = _status(processes, stub)
            if status.tokens and started is None:
                started = time.monotonic()
            if started is None:
                _check_start(processes)
            if view.terminal_is_gone:
                raise KeyboardInterrupt
            view.show(status)
            time.sleep(POLL_S)
        ended = time.monotonic()
        view.show(_status(processes, stub), last=True)
    return ended - (started or ended)


def _check_start(processes: Processes) -> None:
    """Raise SwarmError if a node has ended before the first round."""
    for node in processes.nodes:
        if not node.running:
            raise SwarmError(f"{node.name} did not start:\n{node.tail()}")


def _status(processes: Processes, stub: SwarmStub, *, fingerprint: bool = False) -> StatusReply:
    """The coordinator's status. Retries while the coordinator is busy; raises SwarmError if it has ended."""
    while True:
        try:
            request, metadata = StatusRequest(fingerprint=fingerprint), as_organizer(processes.state_dir)
            return stub.Status(request, timeout=STATUS_TIMEOUT_S, metadata=metadata)
        except grpc.RpcError:
            coordinator = processes.coordinator
            if coordinator is None or not coordinator.running:
                tail = coordinator.tail() if coordinator else ""
                raise SwarmError(f"the coordinator has ended:\n{tail}") from None
            time.sleep(POLL_S)


def _last_status(processes: Processes, stub: SwarmStub, console: Console) -> StatusReply:
    """The status once the held-out loss of the last step has been measured."""
    status = _status(processes, stub)
    if status.step == status.steps and status.measured_step < status.step:
        console.print("measuring the held-out loss of the last step")
    while status.step == status.steps and status.measured_step < status.step:
        time.sleep(POLL_S)
        status = _status(processes, stub)
    return _status(processes, stub, fingerprint=True)


def _coordinator_says(command: str, processes: Processes, *more: str) -> tuple[bool, str]:
    """Run a command of the coordinator on its final state. Returns whether it succeeded, and its output."""
    done = subprocess.run(
        [BIN / "thinwire-coordinator", command, "--state-dir", processes.state_dir, *more],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode == 0, (done.stdout if done.returncode == 0 else done.stderr).strip()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("make swarm", description=__doc__)
    parser.add_argument("--nodes", type=count, default=3)
    parser.add_argument("--rounds", type=count, default=200)
    parser.add_argument("--exchange", choices=("star", "gossip"), default="star", help="gossip: a gossip run")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="byte-1m")
    parser.add_argument("--metrics", action="store_true", help="serve metrics, and scrape them with Prometheus")
    return parser.parse_args()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
