"""A small Qwen3 with a tokenizer trained on the spot, opened by transformers at the end."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from rich.console import Console

from examples.running.example import Example, main, prepare
from examples.running.opened import compare_with_transformers
from examples.running.swarm import Swarm

HERE = Path(__file__).parent
VOCABULARY = 2048
EXPORTED = "exported"


def make_shards(folder: Path, console: Console) -> None:
    shutil.copytree(HERE / "config", folder / "config")
    source = f"library={sysconfig.get_paths()['stdlib']}/[a-z]*.py"
    prepare(console, source, "--train-tokenizer", str(VOCABULARY), "--held-out", "2%", "--out", str(folder / "data"))


def after(swarm: Swarm, folder: Path) -> dict[str, str]:
    swarm.command("export", "--out", str(folder / EXPORTED))
    return compare_with_transformers(swarm, folder / EXPORTED)


EXAMPLE = Example(HERE, make_shards, after)

if __name__ == "__main__":
    main(EXAMPLE)
