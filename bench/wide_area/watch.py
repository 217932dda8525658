"""Polls a coordinator's status, and prints the counters that the benchmark needs, as one JSON object a line.

It is a separate process because it must run in the coordinator's namespace, and the benchmark runs in none of them.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from thinwire_coordinator.cli.status_client import as_organizer, open_channel
from thinwire_proto.wire.service_pb2 import StatusReply, StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

INTERVAL_S = 0.2
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Sample:
    """Counters of a swarm at one time, summed over its nodes since their start."""

    at_s: float
    """On the machine's monotonic clock, which all processes share."""
    step: int
    tokens: int
    counted: int
    not_counted: int
    compute_s: float
    active: int
    rounds_void: int
    different: int
    """Fingerprints that differed from the coordinator's."""
    counted_by: dict[str, int]
    """`counted` of each node, by its name."""


def sample_of(status: StatusReply, at_s: float) -> Sample:
    nodes = status.nodes
    return Sample(
        at_s=at_s,
        step=status.step,
        tokens=status.tokens,
        counted=sum(node.counted for node in nodes),
        not_counted=sum(node.not_counted for node in nodes),
        compute_s=sum(node.compute_s for node in nodes),
        active=sum(node.active for node in nodes),
        rounds_void=status.rounds_void,
        different=status.fingerprints_different,
        counted_by={node.name: node.counted for node in nodes},
    )


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.wide_area.watch", description=__doc__)
    parser.add_argument("coordinator", help="an invite, @FILE with one, or HOST:PORT on this machine")
    parser.add_argument("state_dir", type=Path, help="the coordinator's state directory")
    arguments = parser.parse_args()
    with open_channel(arguments.coordinator) as channel:
        stub = SwarmStub(channel)
        while True:
            metadata = as_organizer(arguments.state_dir)
            status = stub.Status(StatusRequest(), timeout=TIMEOUT_S, wait_for_ready=True, metadata=metadata)
            print(json.dumps(asdict(sample_of(status, time.monotonic()))), flush=True)
            time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main()
