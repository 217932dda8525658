"""Swarms of real processes whose data fail: the node says what happened, the round goes on, and nothing differs."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local_swarm.processes import Process
from support.disks import fill, small_disk
from support.file_server import FileServer, serving
from support.real import RealSwarm, ended, last_fingerprint, run_text, until
from support.token_folder import VOCABULARY, write_tokens
from thinwire_proto.data.manifest import BLOBS_FOLDER, Manifest

CONTEXT = 64
SAMPLES = 20
"""Samples of a shard."""
SHARDS = 8
OWN = ("--data-networks", "loopback")
"""The server of the shards listens there."""


class Data:
    """A folder of prepared data, a server for its shards, and the swarm that trains on them."""

    def __init__(self, swarm: RealSwarm, folder: Path, server: FileServer, manifest: Manifest) -> None:
        self.swarm, self.folder, self.server = swarm, folder, server
        self.shards = [shard.hash for shard in manifest.sources[0].train]

    def coordinator(self) -> Process:
        data = f'[data]\nkind = "tokens"\nfolder = "{self.folder}"\nurls = ["{self.server.url}"]\n'
        return self.swarm.coordinator(run_text(100_000, model=f"vocabulary = {VOCABULARY}") + data)

    def only_served(self, *names: str) -> None:
        """Delete shards from the coordinator's state directory, so that only the server has them."""
        for name in names:
            (self.swarm.state / "blobs" / name).unlink()

    def leave(self, *nodes: Process) -> None:
        """Stop the nodes, and compare what they hold with the coordinator's replica, unless that is a step ahead."""
        for node in nodes:
            node.tell(signal.SIGINT)
            assert ended(node) == 0, node.text()
        status = self.swarm.status(fingerprint=True)
        assert status.fingerprints_compared > 0
        assert status.fingerprints_different == 0
        held = {last_fingerprint(node) for node in nodes} | {(status.step, status.fingerprint)}
        assert len({step for step, _ in held}) == len(held)  # one fingerprint for each step


@pytest.fixture
def data(swarm: RealSwarm, tmp_path: Path) -> Iterator[Data]:
    folder = tmp_path / "prepared"
    tokens = CONTEXT * SAMPLES + 1
    manifest = write_tokens(folder, {"text": [tokens] * SHARDS}, wrong=SHARDS - 1)
    with serving(folder / BLOBS_FOLDER) as server:
        yield Data(swarm, folder, server, manifest)


def flip_byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def skipped(node: Process) -> dict[str, str]:
    """The shards that a node skipped, and why."""
    return {event["blob"]: event["reason"] for event in node.events("node.shard_skipped")}


def test_shards_that_cannot_be_read_are_skipped_and_the_rounds_go_on(data: Data) -> None:
    swarm, server = data.swarm, data.server
    silent, changed, short, longer, rotten, *_, wrong = data.shards
    server.faults = {silent: "stall", changed: "flip", short: "truncate", longer: "longer", rotten: "missing"}
    coordinator = data.coordinator()
    data.only_served(silent, changed)
    flip_byte(swarm.state / "blobs" / rotten)
    with small_disk(swarm.folder / "full" / "blobs", 1):
        fill(swarm.folder / "full" / "blobs")
        full, good = swarm.node("full", *OWN), swarm.node("good", *OWN)
        unreadable = {silent, changed, rotten, wrong}
        until(lambda: skipped(good).keys() == unreadable, "good skips what cannot be read", good, coordinator)
        until(lambda: len(skipped(full)) > 1, "full skips what it cannot write", full, coordinator)
        swarm.reached(swarm.status().step + 5)
        assert swarm.counted("full") == 0
        data.leave(full, good)
    why = skipped(good)
    assert "only" in why[silent] or "nothing came for 10 s" in why[silent]
    assert "does not have the blob" in why[silent]
    assert "came with the hash" in why[changed]
    assert "copy of the blob" in why[rotten]
    assert "its organizer must restore it" in why[rotten]
    assert [event["place"] for event in coordinator.events("coordinator.blob_unusable")] == [
        str(swarm.state / "blobs" / rotten)
    ]
    assert f"has the token {VOCABULARY}, but the vocabulary has {VOCABULARY} tokens" in why[wrong]
    assert all(re.search("lacks [0-9,]+ bytes", reason) for blob, reason in skipped(full).items() if blob != rotten)
    assert {event["name"] for event in coordinator.events("coordinator.samples_skipped")} == {"full", "good"}
    coordinator.end(10)
    swarm.verify()


def test_damaged_held_out_samples_are_named_and_the_run_goes_on(swarm: RealSwarm, tmp_path: Path) -> None:
    folder, tokens = tmp_path / "prepared", CONTEXT * SAMPLES + 1
    manifest = write_tokens(folder, {"text": [tokens] * SHARDS}, {"text": [tokens]})
    data = f'[data]\nkind = "tokens"\nfolder = "{folder}"\n'
    swarm.coordinator(run_text(100_000, model=f"vocabulary = {VOCABULARY}") + data).end(10)
    damaged = swarm.state / "blobs" / manifest.sources[0].held_out[0].hash
    flip_byte(damaged)
    coordinator, node = swarm.coordinator(None, "--evaluate-every", "1"), swarm.node("one")
    until(lambda: len(coordinator.events("coordinator.not_measured")) > 2, "measurements", coordinator, node)
    swarm.reached(swarm.status().step + 3)
    assert {str(damaged) in event["reason"] for event in coordinator.events("coordinator.not_measured")} == {True}
    node.end(10)
    coordinator.end(10)
    assert "Traceback" not in coordinator.text()
