"""A LoRA adapter on the model of the example hugging_face."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

from rich.console import Console

from deploy.local_swarm.processes import SwarmError
from examples.hugging_face.__main__ import EXPORTED
from examples.running.example import Example, main, prepare
from examples.running.opened import compare_adapter, compare_with_transformers
from examples.running.swarm import Swarm

PROMPTS = ("The ", "An expression ", "Calls to ")


def copy_base(folder: Path, console: Console) -> None:
    """Copy the base into the folder of a run, and make it first if there is none."""
    base = folder.parent / "example-hugging_face" / EXPORTED
    if not base.exists():
        console.print("making the base: examples.hugging_face")
        made = [sys.executable, "-m", "examples.hugging_face", "--runs", str(folder.parent), "--keep-page"]
        if subprocess.run(made, check=False).returncode:
            raise SwarmError("the base could not be made")
    shutil.copytree(base, folder / "base")


def make_shards(folder: Path, console: Console) -> None:
    copy_base(folder, console)
    manual = folder / "manual"
    manual.mkdir()
    for name, text in topics.items():
        (manual / f"{name}.txt").write_text(text, encoding="utf-8")
    base = str(folder / "base")
    prepare(console, f"manual={manual}", "--tokenizer", base, "--held-out", "10%", "--out", str(folder / "data"))


def after(swarm: Swarm, folder: Path) -> dict[str, str]:
    swarm.command("export", "--out", str(folder / "adapter"))
    swarm.command("export", "--merge", "--out", str(folder / "merged"))
    merged = compare_with_transformers(swarm, folder / "merged", PROMPTS)
    return compare_adapter(swarm, folder / "base", folder / "adapter", PROMPTS) | {
        f"merged: {name}": result for name, result in merged.items()
    }


if __name__ == "__main__":
    main(Example(Path(__file__).parent, make_shards, after))
