"""`make fuzz`: see `fuzz`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from fuzz.corpus import CORPUS
from fuzz.parsers import fuzz
from fuzz.target import FuzzFailure
from fuzz.targets import all_targets


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzzes everything that strangers send.")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most; default 60")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("--target", action="append", help="only this one; repeatable")
    parser.add_argument("--keep", action="store_true", help=f"keep inputs that reach new code in {CORPUS.name}/")
    parser.add_argument("--go-on", action="store_true", help="after a find")
    arguments = parser.parse_args()
    targets = [one for one in all_targets() if not arguments.target or one.name in arguments.target]
    until, keep_in = time.monotonic() + 60 * arguments.minutes, Path(CORPUS) if arguments.keep else None
    try:
        summary = fuzz(targets, arguments.inputs, arguments.seed, until=until, keep_in=keep_in, go_on=arguments.go_on)
    except FuzzFailure as error:
        raise SystemExit(f"{error}\nthe seed was {arguments.seed}") from None
    print(summary)
    if summary.finds:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
