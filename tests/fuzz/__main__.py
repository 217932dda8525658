"""`make fuzz`: see `fuzz`."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from fuzz.corpus import CORPUS
from fuzz.parsers import fuzz
from fuzz.target import FuzzFailure
from fuzz.targets import all_targets
from fuzz.wire.attack import attack_coordinator
from fuzz.wire.hostile import attack_node

PARTS = {"parsers": 0.4, "coordinator": 0.5, "node": 0.1}
"""The targets, each with its share of the time and of the inputs."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzzes everything that strangers send.")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="at most; default 1000000")
    parser.add_argument("--minutes", type=float, default=10.0, help="at most; default 10")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; repeatable")
    parser.add_argument("--keep", action="store_true", help=f"keep inputs that reach something new in {CORPUS.name}/")
    arguments = parser.parse_args()
    parts = [part for part in PARTS if not arguments.part or part in arguments.part]
    total, found = sum(PARTS[part] for part in parts), False
    for part in parts:
        share = PARTS[part] / total
        until = time.monotonic() + 60 * arguments.minutes * share
        found |= _run(part, round(arguments.inputs * share), until, arguments)
    raise SystemExit(found)


def _run(part: str, inputs: int, until: float, arguments: argparse.Namespace) -> bool:
    """Run a part, print what happened, and return whether it found something."""
    keep_in = CORPUS if arguments.keep else None
    if part == "parsers":
        try:
            print(fuzz(all_targets(), inputs, arguments.seed, until=until, keep_in=keep_in), flush=True)
        except FuzzFailure as error:
            print(f"{error}\nthe seed was {arguments.seed}")
            return True
        return False
    with tempfile.TemporaryDirectory(prefix="thinwire-fuzz-") as folder:
        if part == "node":
            lied_to = attack_node(Path(folder), inputs, arguments.seed, until=until)
            print(lied_to, flush=True)
            return lied_to.found
        attacked = attack_coordinator(Path(folder), inputs, arguments.seed, until=until, keep_in=keep_in)
    print(attacked, flush=True)
    return attacked.found


if __name__ == "__main__":
    main()
