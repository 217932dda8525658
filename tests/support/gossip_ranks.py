"""Runs ranks as real processes with gloo: `python gossip_ranks.py FOLDER SCENES NUMBER`, or `run_scenes`.

The program imports what the ranks need once, and forks them. Each rank plays all scenes of the module SCENES in turn,
in FOLDER, and pickles what they return. A rank may kill itself; then its last scenes are missing.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from support.fork_server import run

RANKS = 4
HANGS_AFTER_S = 140
"""A rank that takes longer prints where it is, and ends, before `run` gives it up."""

STOPPED = "stopped"
"""The name of a file that is there once a rank has stopped itself. Whoever wakes the rank removes it."""


def run_scenes(folder: Path, scenes: str, ranks: int = RANKS) -> list[dict[str, Any]]:
    """What each rank's scenes returned, by the scene's name."""
    done = run(["python", __file__, str(folder), scenes, str(ranks)], folder, timeout_s=HANGS_AFTER_S + 10)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [folder / f"{rank}.pickle" for rank in range(ranks)]
    return [pickle.loads(path.read_bytes()) if path.exists() else {} for path in found]


def main() -> None:
    warnings.simplefilter("default")
    folder, name, ranks = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    module = importlib.import_module(name)
    importlib.import_module("torch._dynamo")  # the first optimizer imports it: 1.6 s, once and not in each rank
    left = {_fork(rank, ranks, folder, module.SCENES) for rank in range(ranks)}
    failed = False
    while left:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            (folder / STOPPED).touch()
            continue
        left.discard(pid)
        failed |= os.waitstatus_to_exitcode(status) > 0  # a signal is part of a scene
    sys.exit(failed)


def _fork(rank: int, ranks: int, folder: Path, scenes: Any) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        torch.set_num_threads(1)
        dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks)
        os.chdir(folder)
        found = {}
        for scene in scenes:
            found[scene.__name__] = scene(rank)
            (folder / f"{rank}.pickle").write_bytes(pickle.dumps(found))
        code = 0
    except BaseException:  # noqa: BLE001 - a rank must not go on as its parent
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
