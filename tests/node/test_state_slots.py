"""Nodes that share a folder each get their own slot and find it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from thinwire_node.storage.state import NodeState
from thinwire_node.storage.state_slots import free_state_slot

TAKER = """
import sys
from pathlib import Path
from thinwire_node.storage.state_slots import free_state_slot
with free_state_slot(Path(sys.argv[1])) as slot:
    print(slot.number, flush=True)
    sys.stdin.read()
"""
RACERS = 6


def test_nodes_that_start_together_get_different_slots_and_a_killed_node_frees_its_slot(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKER, str(tmp_path)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(RACERS)
    ]
    try:
        by_slot = {int(racer.stdout.readline()): racer for racer in racers if racer.stdout}
        assert sorted(by_slot) == list(range(RACERS))
        by_slot[2].kill()
        by_slot[2].wait()
        with free_state_slot(tmp_path) as slot:
            assert slot.number == 2
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_a_slot_serves_as_a_state_directory_and_is_found_again(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        with free_state_slot(tmp_path) as slot:
            state = NodeState(slot.folder)
            ids.append(state.node_id)
            state.close()
    assert ids[0] == ids[1]


def test_a_slot_in_use_as_a_state_dir_is_skipped(tmp_path: Path) -> None:
    state = NodeState(tmp_path / "0")
    with free_state_slot(tmp_path) as slot:
        assert slot.number == 1
    state.close()
    with free_state_slot(tmp_path) as slot:
        assert slot.number == 0
