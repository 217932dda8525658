"""A model of 8M parameters on token shards that `prepare` makes from text of this machine."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from rich.console import Console

from examples.running.example import Example, main, prepare

VOCABULARY = 4096


def make_shards(folder: Path, console: Console) -> None:
    library = sysconfig.get_paths()["stdlib"]
    sources = (f"library={library}/[a-z]*.py", f"packages={library}/*/*.py", f"manual={library}/pydoc_data/*.py")
    prepare(console, *sources, "--train-tokenizer", str(VOCABULARY), "--held-out", "2%", "--out", str(folder / "data"))


if __name__ == "__main__":
    main(Example(Path(__file__).parent, make_shards))
