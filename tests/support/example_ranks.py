"""Runs examples that use DeMo, each on two forked ranks, and prints a list of what the ranks printed, as JSON.

    python example_ranks.py FOLDER SCRIPT "ARGUMENTS" SCRIPT "ARGUMENTS" …

This process imports what the scripts import, once for all ranks, because that takes seconds. A rank also prints a hash
of the first gradients that its optimizer gets. The parameters of all ranks are equal whether or not a framework
averages gradients, so only the gradients show whether it does.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import traceback
import zlib
from pathlib import Path
from typing import Any

import torch

from thinwire.demo.optimizer import DeMo

RANKS = 2


def main() -> None:
    folder, *given = sys.argv[1:]
    scripts = list(zip(given[::2], given[1::2], strict=True))
    for script in {script for script, _ in scripts}:
        runpy.run_path(script, run_name="imported")
    print(json.dumps([_ranks(Path(folder), script, more) for script, more in scripts]))


def _ranks(folder: Path, script: str, arguments: str) -> list[str]:
    """Fork the ranks, with the environment that torchrun gives. Returns what each printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = {"WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    paths = [folder / f"{Path(script).stem}.{rank}.txt" for rank in range(RANKS)]
    started = [_fork(rank, path, script, arguments) for rank, path in enumerate(paths)]
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started]
    texts = [path.read_text() for path in paths]
    assert ends == [0] * RANKS, f"{script}: {ends}\n" + "\n".join(texts)
    return texts


def _fork(rank: int, path: Path, script: str, arguments: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    with path.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        sys.argv = [script, *arguments.split()]
        _print_first_gradients()
        runpy.run_path(script, run_name="__main__")
    except BaseException:  # noqa: BLE001 - a rank must not go on as its parent
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(1)  # the examples end by themselves


def _print_first_gradients() -> None:
    step, seen = DeMo.step, set[DeMo]()

    def with_hash(self: DeMo, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()  # computes the gradients
        if self not in seen:
            seen.add(self)
            found = 0
            for group in self.param_groups:
                for tensor in group["params"]:
                    found = zlib.crc32(tensor.grad.numpy().tobytes(), found)
            print(f"gradients {found:08x}", flush=True)
        step(self)
        return loss

    DeMo.step = with_hash  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
