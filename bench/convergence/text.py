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
INSTALLED = frozenset({"site-packages", "dist-packages"})


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


def text_files(folders: tuple[Path, ...]) -> dict[Path, str]:
    """Files with different contents, and the package of each: what it is in directly below its folder. Their order
    depends only on their names and mixes the folders. Installed packages within a folder are left out, since they are a
    folder of their own."""
    found: dict[bytes, tuple[Path, str]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            parts = path.relative_to(folder).parts
            is_text = path.suffix in ENDINGS and path.is_file() and path.stat().st_size in FILE_BYTES
            if is_text and INSTALLED.isdisjoint(parts):
                found.setdefault(hashlib.sha256(path.read_bytes()).digest(), (path, parts[0]))
    return dict(sorted(found.values(), key=lambda one: number_of(one[0])))


def number_of(name: object) -> int:
    """A number that depends only on the name, for an order that mixes what has similar names."""
    return int.from_bytes(hashlib.sha256(str(name).encode()).digest()[:8], "big")
