"""The texts of a study: bytes of the standard library, or tokens of the text files on this machine.

`stdlib` is the default of a swarm, and enough for a model with a million parameters. `machine` is for a GPU:
documentation and source code from the folders below, through a byte-pair tokenizer that is trained on them. It is
created once and cached. Its hash is in every result, and results on different texts never share a table.
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire_proto.data.stdlib import make_corpus

Tokens = npt.NDArray[np.unsignedinteger[Any]]

CACHE = Path("runs") / "science-text"
FOLDERS = (Path(sys.prefix), Path(sysconfig.get_paths()["stdlib"]), Path("/usr/share/doc"), Path("/usr/include"))
ENDINGS = frozenset({".py", ".pyi", ".md", ".rst", ".txt", ".h", ".hpp", ".c", ".cpp", ".cuh", ".html", ".js"})
FILE_BYTES = range(1 << 10, 1 << 20)
HELD_OUT_ONE_IN = 100
VOCABULARY = 8192
TOKENIZER_FILES = 4000  # files that the tokenizer is trained on; more change almost nothing


@dataclass(frozen=True)
class Text:
    """train, held_out: concatenated tokens, uint8 or uint16. hash: of both, 64 hexadecimal digits."""

    train: Tokens
    held_out: Tokens
    hash: str


@lru_cache(maxsize=1)
def text_of(name: str) -> Text:
    """The text `stdlib` or `machine`."""
    return _stdlib() if name == "stdlib" else _machine(FOLDERS, CACHE)


def _stdlib() -> Text:
    corpus = make_corpus()
    return Text(corpus.train, corpus.held_out, corpus.hash)


def _machine(folders: tuple[Path, ...], cache: Path) -> Text:
    if not (cache / "about.json").exists():
        make_machine_text(folders, cache)
    about = json.loads((cache / "about.json").read_text())
    train, held_out = (np.load(cache / f"{part}.npy", mmap_mode="r") for part in ("train", "held_out"))
    return Text(train, held_out, about["hash"])


def make_machine_text(folders: tuple[Path, ...], cache: Path) -> int:
    """Write the tokens of all text in `folders` to `cache`, and return the number of training tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - only `make science` needs it

    files = text_files(folders)
    if not files:
        raise ValueError(f"there are no text files in {', '.join(map(str, folders))}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    sample = files[:: max(1, len(files) // TOKENIZER_FILES)]
    tokenizer.train_from_iterator(_contents(sample), trainer)
    parts: dict[str, list[npt.NDArray[np.uint16]]] = {"train": [], "held_out": []}
    for path, content in zip(files, _contents(files), strict=True):
        part = "held_out" if _number(path) % HELD_OUT_ONE_IN == 0 else "train"
        parts[part].append(np.array(tokenizer.encode(content).ids, np.uint16))
    cache.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    counts = {}
    for name, arrays in parts.items():
        tokens = np.concatenate([*arrays, np.zeros(0, np.uint16)])
        np.save(cache / f"{name}.npy", tokens)
        digest.update(tokens.tobytes())
        counts[name] = len(tokens)
    tokenizer.save(str(cache / "tokenizer.json"))
    about = {"hash": digest.hexdigest(), "files": len(files), **counts}
    (cache / "about.json").write_text(json.dumps(about) + "\n")
    return counts["train"]


def text_files(folders: tuple[Path, ...]) -> list[Path]:
    """Files with different contents, in an order that depends only on their names and mixes the folders."""
    found: dict[bytes, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in ENDINGS and path.is_file() and path.stat().st_size in FILE_BYTES:
                found.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
    return sorted(found.values(), key=_number)


def _number(path: Path) -> int:
    return int.from_bytes(hashlib.sha256(str(path).encode()).digest()[:8], "big")


def _contents(files: list[Path]) -> Iterator[str]:
    for path in files:
        yield path.read_bytes().decode(errors="replace")
