"""Measures what only a card can decide: the yardstick at 10M and 124M parameters, resumable over several short stays.

    python -m bench.card --minutes 28   trains, and appends a line for each run that ended to --results
    python -m bench.card --page         writes the page of the results
    python -m bench.card --pack FILE    packs the text of this Python, to take it elsewhere

Runs are sorted by what matters most. One that is in the file is not made again, and one that would not end in the time
that is left is not begun. `--quick --device cpu` makes all arms' runs with a tiny model, without a card.
"""

from __future__ import annotations

import argparse
import gc
import logging
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from bench.card.corpus import Packed, pack, read
from bench.card.page import write_page
from bench.card.plan import ITEMS, MODELS, QUICK_ITEMS, SMALLEST_ITEMS, CardRun, Item, Line, next_runs
from bench.card.run import OutOfTime, carry_out
from bench.convergence.text import Text, stdlib
from bench.studies import append
from bench.studies import read as read_results

log = logging.getLogger("bench.card")

STDLIB = "stdlib"
TEXT = Path("runs") / "card-text.zst"
RESULTS = Path("docs") / "convergence" / "card.jsonl"
PAGE = RESULTS.with_name("card.md")
START_S = 10.0
"""The seconds that a run takes beside its steps, compiling included."""


class Texts:
    """The packed text, as bytes at once and as tokens as soon as they are ready; both in threads of their own."""

    def __init__(self, path: Path) -> None:
        """path: of the packed text, or `stdlib` for the text of `bench.convergence`, which has no tokens."""
        self._packed: Packed | None = None
        if str(path) == STDLIB:
            self._bytes = stdlib()
        else:
            self._packed = read(path)
            self._bytes = self._packed.as_bytes()
        self.hash = self._bytes.hash
        self._tokens: Future[Text] | None = None

    def prepare_tokens(self) -> None:
        self._tokens = ThreadPoolExecutor(1).submit(self._tokenized)

    def of(self, model: str) -> Text:
        if MODELS[model].is_bytes:
            return self._bytes
        if self._tokens is None:
            self.prepare_tokens()
        assert self._tokens is not None
        return self._tokens.result()

    def _tokenized(self) -> Text:
        """The tokens, which stay in a file for the next call."""
        if self._packed is None:
            raise ValueError(f"the text {STDLIB} has no tokens: pack one with --pack")
        kept = Path(tempfile.gettempdir()) / f"card-{self._packed.hash[:16]}.npz"
        if not kept.exists():
            found = self._packed.as_tokens()
            np.savez(kept, train=found.train, held_out=found.held_out)
            return found
        with np.load(kept) as parts:
            return Text(parts["train"], parts["held_out"], self._packed.hash)


def main() -> None:
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if arguments.pack:
        print(pack(arguments.pack))
        return
    if arguments.page:
        write_page(read_results(arguments.results, Line), PAGE)
        return
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if str(arguments.text) != STDLIB and not arguments.text.exists():
        print(f"packing the text of this Python into {arguments.text}, which takes minutes", flush=True)
        arguments.text.parent.mkdir(parents=True, exist_ok=True)
        print(pack(arguments.text), flush=True)
    texts = Texts(arguments.text)
    items = QUICK_ITEMS if arguments.quick else ITEMS
    if arguments.models:
        items = [item for item in (*ITEMS, *SMALLEST_ITEMS, *QUICK_ITEMS) if item.model in arguments.models]
    if any(not MODELS[item.model].is_bytes for item in items):
        texts.prepare_tokens()
    work(items, texts, device, arguments.results, time.monotonic() + 60 * arguments.minutes)


def work(items: Sequence[Item], texts: Texts, device: torch.device, results: Path, until: float) -> None:
    """Make the missing runs until the time is over. A run that fails is reported, and not tried again in this stay."""
    skipped: set[CardRun] = set()
    results.parent.mkdir(parents=True, exist_ok=True)
    while True:
        lines = [line for line in read_results(results, Line) if line.corpus == texts.hash]
        missing = [run for run in next_runs(items, lines) if run not in skipped]
        fitting = [run for run in missing if time.monotonic() + estimate(run, lines) < until]
        if not fitting:
            print(f"{len(missing)} runs are known to be missing, and none fits into the time that is left", flush=True)
            return
        run = fitting[0]
        try:
            line = carry_out(run, texts.of(run.model), device, until)
        except OutOfTime as error:
            print(f"{run}: given up, {error}", flush=True)
            skipped.add(run)
        except Exception:  # a task's boundary: the other runs still count
            log.exception("%s: failed", run)
            skipped.add(run)
        else:
            append(results, line)
            print(f"{run}: loss {line.loss:.4f}, {line.speed:,.0f} tokens/s, {line.seconds:.0f} s", flush=True)
        _free()


def estimate(run: CardRun, lines: Sequence[Line]) -> float:
    """Seconds of a run, by the speed of the same arm, or else by that of the slowest of the same model; 0 if nothing is
    known."""
    of_model = [line for line in lines if line.run.model == run.model]
    same = [line for line in of_model if (line.run.arm, line.run.nodes) == (run.arm, run.nodes)]
    speeds = [line.speed for line in same or of_model]
    return START_S + run.tokens / min(speeds) if speeds else 0.0


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.card", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the packed text there")
    parser.add_argument("--text", type=Path, metavar="FILE", default=TEXT, help="packed if missing; or `stdlib`")
    parser.add_argument("--minutes", type=float, default=0.0, help="how long to train; 0: not at all")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--models", nargs="*", choices=MODELS, help="train only these")
    parser.add_argument("--device", help="cpu or cuda; the default is a card if there is one")
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    parser.add_argument("--page", action="store_true", help="write the page of the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
