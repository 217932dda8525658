"""Inputs that are kept, one file each: CORPUS/TARGET/HASH. `make test-all` replays them."""

from __future__ import annotations

import hashlib
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
INPUT_BYTES_MAX = 4096
"""Larger inputs reach new code too, but are not worth their room in the repository."""
INPUTS_MAX = 24
"""Kept for one target."""


def kept(target: str, folder: Path = CORPUS) -> list[bytes]:
    """The inputs that are kept for a target."""
    return [path.read_bytes() for path in sorted((folder / _slug(target)).glob("*")) if path.is_file()]


def keep(target: str, data: bytes, folder: Path = CORPUS) -> bool:
    """Keep an input, unless there are enough. Returns whether it is new."""
    place = folder / _slug(target)
    path = place / hashlib.sha256(data).hexdigest()[:16]
    if len(data) > INPUT_BYTES_MAX or path.exists() or len(kept(target, folder)) >= INPUTS_MAX:
        return False
    place.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return True


def _slug(target: str) -> str:
    return target.replace(" ", "-")
