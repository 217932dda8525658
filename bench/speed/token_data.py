"""Token shards with random tokens, and a contract for them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from thinwire_proto.blobs import BlobFolder
from thinwire_proto.contract import Contract, ModelSpec, RunSpec
from thinwire_proto.contract.data.tokens import TokensSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Manifest, Shard, Source
from thinwire_proto.task import DataSource, data_kind_of, task_of

SHARDS, SHARD_TOKENS = 4, 1 << 18
"""Of the training part. One more shard is held out."""


def token_folder(folder: Path, vocabulary: int, shard_tokens: int = SHARD_TOKENS) -> Path:
    """Write a folder of prepared data. Returns it."""
    blobs = folder / BLOBS_FOLDER
    blobs.mkdir(parents=True)
    rng = np.random.default_rng(1)
    shards = []
    for _ in range(SHARDS + 1):
        data = rng.integers(0, vocabulary, shard_tokens).astype("<u4").tobytes()
        shards.append(Shard(hash=hashlib.sha256(data).hexdigest(), size=len(data), tokens=shard_tokens))
        (blobs / shards[-1].hash).write_bytes(data)
    source = Source(name="random", train=tuple(shards[1:]), held_out=tuple(shards[:1]))
    manifest = Manifest(token="uint32", vocabulary=vocabulary, sources=(source,))
    (folder / MANIFEST_FILE).write_bytes(manifest.written())
    return folder


def token_data(model: ModelSpec, folder: Path, round_s: float) -> tuple[Contract, DataSource]:
    """A contract for `model` with rounds of `round_s` on the clock, and its data, opened."""
    data = TokensSpec(folder=str(token_folder(folder / "data", model.vocabulary)))
    round_ = RoundSpec(pace="clock", length_ms=round(1000 * round_s), base_age_max=1, samples=1024)
    run = RunSpec(model=model, data=data, round=round_)
    kind = data_kind_of(data)
    made = kind.make(run, lambda: None)
    sections = {name: getattr(run, name) for name in RunSpec.model_fields} | {"data": made.spec}
    contract = Contract(**sections, parameters=task_of(model).manifest())
    return contract, kind.open(made.file, contract, BlobFolder(folder / "data" / BLOBS_FOLDER))
