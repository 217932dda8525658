"""The text of a study: bytes of the standard library, as in a swarm by default. And the text files of folders."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire_proto.data.stdlib import make_corpus

Tokens = npt.NDArray[np.unsignedinteger[Any]]

ENDINGS = frozenset({".py", ".pyi", ".md", ".rst", ".txt", ".h", ".hpp", ".c", ".cpp", ".cuh", ".html", ".js"})
FILE_BYTES = range(1 << 10, 1 << 20)


@dataclass(frozen=True)
class Text:
    """train, held_out: concatenated tokens, uint8 or uint16. hash: of both, 64 hexadecimal digits."""

    train: Tokens
    held_out: Tokens
    hash: str


@lru_cache(maxsize=1)
def stdlib() -> Text:
    """The standard library."""
    corpus = make_corpus()
    return Text(corpus.train, corpus.held_out, corpus.hash)


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
