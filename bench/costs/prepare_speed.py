"""Measures `prepare` beside the bare tokenizer: text a second, and processor time, on the same documents and threads.

python -m bench.costs.prepare_speed --threads 2 --megabytes 20
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from thinwire_coordinator.prepare.preparation import Settings, prepare
from thinwire_coordinator.prepare.progress import Shown
from thinwire_coordinator.prepare.sources import parse_sources
from thinwire_coordinator.prepare.tokenizer_training import train_tokenizer
from thinwire_coordinator.prepare.tokenizing import limit_threads
from thinwire_proto.data.json_tokenizer import JsonTokenizer

VOCABULARY = 8192
DOCUMENTS_AT_ONCE = 256
ROUNDS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=20)
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    texts = _texts(arguments.megabytes * 10**6)
    size = sum(len(text.encode()) for text in texts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, tokenizer = folder / "text.jsonl", folder / "tokenizer.json"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        train_tokenizer(texts[::20], VOCABULARY, tokenizer)
        print(f"{size / 1e6:.0f} MB in {len(texts):,} documents; MB/s (in brackets: MB a second of processor time)")
        for number in range(ROUNDS):
            _compare(source, tokenizer, texts, size, folder / str(number))


def _compare(source: Path, tokenizer: Path, texts: list[str], size: int, out: Path) -> None:
    bare, bare_processor = _measured(lambda: _encode(tokenizer, texts), size)
    settings = Settings(parse_sources([str(source)]), out, tokenizer=str(tokenizer))
    with Shown() as shown:
        whole, processor = _measured(lambda: prepare(settings, shown), size)
    print(f"tokenizers {bare:.2f} ({bare_processor:.2f}), prepare {whole:.2f} ({processor:.2f})", end=", ")
    print(f"ratio {whole / bare:.0%} ({processor / bare_processor:.0%})")


def _encode(path: Path, texts: list[str]) -> None:
    library = JsonTokenizer(path, 0).library
    for begin in range(0, len(texts), DOCUMENTS_AT_ONCE):
        library.encode_batch_fast(texts[begin : begin + DOCUMENTS_AT_ONCE], add_special_tokens=False)


def _measured(work: Callable[[], object], size: int) -> tuple[float, float]:
    """MB a second of time, and of processor time."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return size / 1e6 / (time.perf_counter() - began), size / 1e6 / (time.process_time() - spent)


def _texts(size: int) -> list[str]:
    """Python's own sources and those of installed packages, until there are `size` bytes."""
    texts, total = [], 0
    folders = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")]
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        texts.append(text)
        total += len(text)
        if total >= size:
            break
    return texts


if __name__ == "__main__":
    main()
