"""Tests full and read-only disks and torn files: an error and exit status 1, or recovery. No sealed step is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
from itertools import pairwise
from pathlib import Path

from deploy.local_swarm.processes import Process
from support.disks import fill, make_room, read_only, small_disk
from support.real import RESTING, RealSwarm, ended, run_text, until
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.verify import verify
from thinwire_proto.errors import MEND_DISK

LONG = run_text(100_000)
DISK_MB = 24
FRAME_BYTES = 24 + 4096
"""A frame of SQLite's write-ahead log: a header and a page. The log itself has a header of 32 bytes."""


def failed_in_words(process: Process) -> str:
    """Wait for a process to end with status 1 and without a traceback. Returns its output."""
    assert ended(process) == 1, process.text()
    text = process.text()
    assert "Traceback" not in text, text
    return text


def serve(swarm: RealSwarm) -> Process:
    """Start a coordinator without waiting until it is ready."""
    command = ("thinwire-coordinator", "serve", "--listen", "127.0.0.1:0", "--state-dir", str(swarm.state))
    return swarm.start("coordinator", *command)


def verified(folder: Path) -> int:
    """Replay all updates of a state directory, and return their number."""
    said: list[str] = []
    verify(folder, said.append)
    state = open_state(folder)
    step = state.ledger.step
    state.close()
    assert f"replayed {step} updates from the first state" in "\n".join(said)
    return step


# full disks


def test_a_full_disk_ends_the_coordinator_which_continues_once_there_is_space(swarm: RealSwarm) -> None:
    with small_disk(swarm.state, DISK_MB):
        coordinator = swarm.coordinator(LONG)
        node = swarm.node("a")
        swarm.reached(5)
        seen = swarm.status().step
        fill(swarm.state)
        text = failed_in_words(coordinator)
        reasons = ("No space left on device", "database or disk is full")  # for an update's body, or for the ledger
        assert any(f"{reason}; nothing that was sealed is lost; {MEND_DISK}" in text for reason in reasons), text
        assert "restore" not in text  # the error must not ask to restore a backup
        make_room(swarm.state)
        coordinator = swarm.coordinator()
        assert swarm.status().step >= seen
        swarm.reached(seen + 5)
        assert node.running
        assert swarm.status().fingerprints_different == 0
        coordinator.end(10)
        assert verified(swarm.state) >= seen + 5


ANY_DISK = ("--max-disk", "1 GB")
"""The node would not start on this disk, because the data could be larger than it."""


def test_a_node_reports_a_full_or_read_only_disk_and_ends(swarm: RealSwarm) -> None:
    swarm.coordinator(LONG)
    folder = swarm.folder / "a"

    def counts() -> bool:
        return any(node.name == "a" and node.active and node.counted > 0 for node in swarm.status().nodes)

    with small_disk(folder, DISK_MB):
        node = swarm.node("a", *ANY_DISK)
        until(counts, "the node is counted", node)
        fill(folder)

        def has_failed() -> bool:
            """A save renames its files over the older ones, and so makes room for the next save."""
            fill(folder)
            return not node.running

        until(has_failed, "the node fails", node)
        text = failed_in_words(node)
        assert f"{folder}: the disk fails: " in text
        assert "No space left on device" in text
        assert MEND_DISK in text
        make_room(folder)
        with read_only(folder):
            text = failed_in_words(swarm.node("a", *ANY_DISK))
            assert f"{folder}: cannot be used as a state directory: Read-only file system" in text
            assert "give another --state-dir" in text
        before = swarm.status().step
        node = swarm.node("a", *ANY_DISK)
        swarm.reached(before + 3)
        with read_only(folder):
            text = failed_in_words(node)
            assert f"{folder}: the disk fails: " in text
            assert "Read-only file system" in text


# read-only folders


# torn files


def test_a_ledger_with_torn_last_rows_keeps_all_earlier_rows(swarm: RealSwarm, tmp_path: Path) -> None:
    """The newest rows are in SQLite's write-ahead log. The test truncates it at various lengths."""
    coordinator = swarm.coordinator(LONG)
    swarm.node("a", *RESTING)  # after a thousand pages, SQLite would empty the log
    swarm.reached(12)
    announced = swarm.status().step
    coordinator.tell(signal.SIGKILL)
    ended(coordinator)
    log = swarm.state / "ledger.sqlite-wal"
    size = log.stat().st_size
    rng = random.Random(1)
    frames = rng.sample([32 + FRAME_BYTES * number for number in range((size - 32) // FRAME_BYTES)], 8)
    found: dict[int, int] = {}
    for cut in sorted({size, 31, 0, *frames, *(frame + rng.randrange(1, FRAME_BYTES) for frame in frames)}):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(swarm.state, copy, ignore=shutil.ignore_patterns("ledger*"), copy_function=os.link)
        for part in swarm.state.glob("ledger*"):
            shutil.copy(part, copy)
        os.truncate(copy / log.name, cut)
        state = open_state(copy)
        rows = list(state.ledger.rows())
        found[cut] = state.ledger.step
        assert [row.step for row in rows] == list(range(found[cut]))
        assert all(after.previous == before.hash for before, after in pairwise(rows))
        state.close()
    assert found[size] >= announced
    assert found[0] == 0
    assert list(found.values()) == sorted(found.values())  # a shorter log never yields more rows
    assert len(set(found.values())) > 3
    for cut in (size, frames[0]):
        assert verified(tmp_path / f"cut-{cut}") == found[cut]
