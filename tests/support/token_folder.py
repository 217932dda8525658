"""Small folders of prepared data, as `thinwire-coordinator prepare` writes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Manifest, Source

VOCABULARY = 300


def write_tokens(
    folder: Path,
    train: Mapping[str, Sequence[int]],
    held_out: Mapping[str, Sequence[int]] | None = None,
    *,
    vocabulary: int = VOCABULARY,
    token: Literal["uint8", "uint16", "uint32"] = "uint16",
    wrong: int | None = None,
) -> Manifest:
    """Write a folder with a manifest. train, held_out: for each source, the number of tokens in each of its shards.

    The tokens count upwards from a number that is the shard's own, so that a sample shows where it was read.
    wrong: the number of the shard, of all that are trained on, whose last token is not in the vocabulary."""
    blobs = folder / BLOBS_FOLDER
    blobs.mkdir(parents=True)
    held_out = held_out if held_out is not None else {name: [100] for name in train}
    starts = iter(range(0, 1 << 30, 7919))

    numbers = iter(range(1 << 30))

    def shard(tokens: int) -> Shard:
        data = ((np.arange(tokens) + next(starts)) % vocabulary).astype(f"<{_code(token)}")
        if next(numbers) == wrong:
            data[-1] = vocabulary
        written = data.tobytes()
        name = hashlib.sha256(written).hexdigest()
        (blobs / name).write_bytes(written)
        return Shard(hash=name, size=len(written), tokens=tokens, text_bytes=4 * tokens)

    trained = {name: tuple(shard(tokens) for tokens in train[name]) for name in train}
    measured = {name: tuple(shard(tokens) for tokens in held_out.get(name, ())) for name in train}
    sources = tuple(Source(name=name, train=trained[name], held_out=measured[name]) for name in train)
    manifest = Manifest(token=token, vocabulary=vocabulary, sources=sources)
    (folder / MANIFEST_FILE).write_bytes(manifest.written())
    return manifest


def _code(token: str) -> str:
    return {"uint8": "u1", "uint16": "u2", "uint32": "u4"}[token]
