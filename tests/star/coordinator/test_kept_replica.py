"""Copies of the replica in files: their bits, their end, what a kill leaves, and the memory that they take."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.new_state import make_state
from support.sealed_run import make_run
from support.small import small_contract
from thinwire_coordinator.hall.ledger.kept_replica import keep
from thinwire_coordinator.hall.ledger.retention import Retention
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.star.replay import replica_at_head

STEPS = 3


@pytest.fixture(name="state")
def _state(tmp_path: Path) -> RunState:
    make_run(tmp_path, STEPS)
    return open_state(tmp_path)


def files(state: RunState) -> list[str]:
    return sorted(path.name for path in (state.folder / "snapshots").iterdir())


def test_a_copy_becomes_the_snapshot_that_the_replica_would_save(state: RunState) -> None:
    replica = replica_at_head(state)
    kept = keep(replica.freeze(), state.folder)
    assert (kept.step, kept.head) == (STEPS, replica.head)
    assert kept.state_hash() == replica.state_hash()
    assert kept.fingerprint(5) == replica.fingerprint(5)
    replica.save(state.folder / "saved")
    path = state.snapshot_path(STEPS)
    kept.become_snapshot(path)
    assert path.read_bytes() == (state.folder / "saved").read_bytes()
    del kept
    gc.collect()
    assert state.load_own_snapshot(STEPS).state_hash() == replica.state_hash()


def test_a_copy_that_is_not_wanted_any_longer_leaves_no_file(state: RunState) -> None:
    before = files(state)
    kept = keep(replica_at_head(state).freeze(), state.folder)
    assert len(files(state)) == len(before) + 1
    del kept
    gc.collect()
    assert files(state) == before


KILLED = """
import resource, signal, sys
from pathlib import Path
from thinwire_coordinator.hall.ledger.kept_replica import keep
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_coordinator.hall.ledger.state_directory import open_state

folder, most, dies = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "dies"
frozen = replica_at_head(open_state(folder)).freeze()
signal.signal(signal.SIGXFSZ, signal.SIG_DFL if dies else signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
keep(frozen, folder)
"""


def cut_off(folder: Path, most: int, what: str) -> subprocess.CompletedProcess[str]:
    """A process that may write files of so many bytes, and then dies or gets an error."""
    command = [sys.executable, "-c", KILLED, str(folder), str(most), what]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a limit on the size of files")
def test_killed_amid_the_file(state: RunState) -> None:
    before, size = files(state), state.snapshot_path(0).stat().st_size
    assert cut_off(state.folder, size // 2, "dies").returncode == -signal.SIGXFSZ
    (left,) = set(files(state)) - set(before)
    assert (state.folder / "snapshots" / left).stat().st_size == size // 2
    again = open_state(state.folder)
    assert replica_at_head(again).step == STEPS
    Retention(again, None).sweep()
    assert files(again) == before


MEASURED = """
import re, sys
from pathlib import Path
from thinwire_coordinator.hall.measuring import HeldOut
from thinwire_coordinator.hall.ledger.kept_replica import keep
from thinwire_coordinator.hall.ledger.state_directory import open_state

def peak(name):
    return 1024 * int(re.search(rf"^{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text(), re.M)[1])

folder, how = Path(sys.argv[1]), sys.argv[2]
state = open_state(folder)
held_out = HeldOut(state.contract, state.data, state.blobs, 8)
replica = state.load_snapshot(0)
held_out.measure(replica, state.held_out_sets[0])  # whatever is made once
Path("/proc/self/clear_refs").write_text("5")
before = peak("VmRSS")
copy = replica.clone() if how == "in memory" else keep(replica.freeze(), folder)
losses = [held_out.measure(found, state.held_out_sets[0]) for found in (copy, replica)]
assert losses[0] == losses[1]
if how != "in memory":
    copy.become_snapshot(state.snapshot_path(1))
print((peak("VmHWM") - before) / (4 * replica.layout.parameters))
"""
LARGE = {"width": 512, "layers": 12, "heads": 8, "hidden": 1408, "context": 16}
"""A replica of 155 MB, and little else."""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured only on Linux")
def test_a_copy_is_written_measured_and_saved_without_memory_for_a_second_replica(tmp_path: Path) -> None:
    make_state(tmp_path, small_contract(model=LARGE)).close()

    def taken(how: str) -> float:
        """Peak memory beyond the replica, as a share of it."""
        command = [sys.executable, "-c", MEASURED, str(tmp_path), how]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert taken("in a file") < 0.4
    assert taken("in memory") > 0.9  # so the measure would find it
