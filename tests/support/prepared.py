"""Prepares small sources, and reads back the documents of prepared folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thinwire_coordinator.prepare.preparation import Prepared, Settings, prepare
from thinwire_coordinator.prepare.progress import Shown
from thinwire_coordinator.prepare.sources import parse_sources
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.data.manifest import BLOBS_FOLDER, Manifest


def prepared(out: Path, *sources: Path | str, **settings: Any) -> Prepared:
    """Prepare sources in this process."""
    return prepare(Settings(parse_sources([str(source) for source in sources]), out, **settings), Shown())


def tokens_of(out: Path, manifest: Manifest, shards: tuple[Shard, ...]) -> list[int]:
    kind = np.dtype(manifest.token).newbyteorder("<")
    return [int(token) for shard in shards for token in np.fromfile(out / BLOBS_FOLDER / shard.hash, kind)]


def texts_of(out: Path, manifest: Manifest, shards: tuple[Shard, ...]) -> list[str]:
    """The documents in shards, in order."""
    return list(_texts(out, manifest, shards))


def _texts(out: Path, manifest: Manifest, shards: tuple[Shard, ...]) -> Iterator[str]:
    assert manifest.tokenizer is not None
    tokenizer = JsonTokenizer(out / BLOBS_FOLDER / manifest.tokenizer.hash, manifest.end)
    document: list[int] = []
    for token in tokens_of(out, manifest, shards):
        if token == manifest.end:
            yield tokenizer.decode(torch.tensor(document))
            document = []
        else:
            document.append(token)
    assert not document


def all_texts(out: Path, manifest: Manifest) -> list[str]:
    """The documents of all sources, sorted."""
    sides = (side for source in manifest.sources for side in (source.train, source.held_out))
    return sorted(text for side in sides for text in texts_of(out, manifest, side))


class InterruptedAt(Shown):
    """Ctrl-C at the beginning of a part of the work."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def begin(self, label: str, total_bytes: int | None) -> None:
        if label == self._part:
            raise KeyboardInterrupt
        super().begin(label, total_bytes)
