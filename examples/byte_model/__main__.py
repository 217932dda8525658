"""The byte model on Python's standard library."""

from __future__ import annotations

from pathlib import Path

from examples.running.example import Example, main
from examples.running.swarm import Swarm


def after(swarm: Swarm, folder: Path) -> dict[str, str]:
    text = swarm.command("sample", "--prompt", "def ", "--length", "60", "--seed", "1")
    return {"a sample, after 200 steps": f"`{text.strip()!r}`"}


if __name__ == "__main__":
    main(Example(Path(__file__).parent, after=after))
