"""Targets: contracts, rows, manifests, snapshots and the corpus."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import zstandard

from fuzz.message_targets import ROW, small_replica
from fuzz.mutations import damage_bytes, damage_json, damage_msgpack, damage_safetensors
from fuzz.target import Target
from support.small import small_contract, small_corpus
from support.token_folder import write_tokens
from thinwire_proto.blobs import NoBlobs
from thinwire_proto.contract import Contract, CorpusSpec, differences, parse_contract
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.data.corpus import OVERHEAD_BYTES_MAX, corpus_of, unpack_corpus
from thinwire_proto.data.image_manifest import ImageManifest
from thinwire_proto.data.manifest import Manifest
from thinwire_proto.errors import ReplicaError
from thinwire_proto.exact.replica import load_replica
from thinwire_proto.models import check_manifest
from thinwire_proto.task import data_kind_of
from thinwire_proto.wire.rows import parse_row

STEP_MAX = 1 << 63


def file_targets() -> list[Target]:
    scratch = scratch_folder()
    contract = small_contract()
    tokens = write_tokens(scratch / "tokens", {"a": [300, 200], "b": [400]})
    images = _image_manifest()
    return [
        Target("contract", _use_contract, _contracts(tokens, images), damage_json),
        Target("row", parse_row, [ROW.canonical()], damage_msgpack),
        Target("token manifest", _open_tokens(contract), [tokens.written()], damage_json),
        Target("image manifest", _open_images(contract), [images.written()], damage_json),
        Target("corpus", _unpack(corpus_of(contract.data)), [small_corpus().pack()], damage_corpus),
        Target("snapshot", _load(scratch), [_snapshot(scratch)], damage_safetensors, _check_step, (ReplicaError,)),
    ]


def scratch_folder() -> Path:
    """A folder in memory where there is one; deleted when the process ends."""
    found = Path(tempfile.mkdtemp(prefix="thinwire-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    return found


def _contracts(tokens: Manifest, images: ImageManifest) -> list[bytes]:
    """Contracts of every kind that needs no other package, and those of the golden runs."""
    golden = Path(__file__).parents[1] / "golden"
    kept = [path.read_bytes() for path in sorted(golden.glob("*/*/coordinator/contract.json"))]
    made = [small_contract(), small_contract(demo={"k": 8, "magnitude": "tile"}, round={"pace": "clock"})]
    made.append(small_contract(rule={"kind": "local_adamw"}))
    return [one.written for one in made] + kept + [_tokens_contract(made[0], tokens).written]


def _use_contract(data: bytes) -> None:
    """Read a contract as a node and a coordinator do: compare it, and build what it describes, without its memory."""
    contract = parse_contract(data)
    assert parse_contract(contract.written) == contract, "it changes when written and read again"
    differences(contract, small_replica().contract)
    check_manifest(contract)


def _tokens_contract(contract: Contract, manifest: Manifest) -> Contract:
    written = manifest.written()
    return _with_data(contract, written, {"kind": "tokens", "vocabulary": manifest.vocabulary})


def _with_data(contract: Contract, manifest: bytes, data: dict[str, Any]) -> Contract:
    """A contract that names these bytes as its manifest, so that they are read whatever they are."""
    named = {"manifest_hash": hashlib.sha256(manifest).hexdigest(), "manifest_bytes": len(manifest)}
    document = json.loads(contract.written)
    if data["kind"] == "images":
        document["model"] = {"kind": "timm", "classes": data["classes"], "image_size": data["image_size"]}
    else:
        document["model"] |= {"vocabulary": max(512, data["vocabulary"])}
    document["data"] = data | named
    return Contract.model_validate(document)


def _open_tokens(contract: Contract) -> Any:
    def read(data: bytes) -> None:
        vocabulary = min(max(2, _number_in(data, "vocabulary")), 1 << 20)
        spec = {"kind": "tokens", "vocabulary": vocabulary}
        named = _with_data(contract, data, spec)
        _draw(data_kind_of(named.data).open(data, named, NoBlobs()))

    return read


def _open_images(contract: Contract) -> Any:
    def read(data: bytes) -> None:
        spec = {"kind": "images", "classes": 2, "image_size": 8}
        named = _with_data(contract, data, spec)
        _draw(data_kind_of(named.data).open(data, named, NoBlobs()))

    return read


def _draw(source: Any) -> None:
    """Use data as a node does with the first positions that it is granted, and with far ones."""
    for first in (0, 1 << 40, (1 << 64) - 4):
        source.needs((range(first, first + 4),))
        block = source.block(first)
        assert block is None or first in block, "a block"
    for found in source.held_out_sets():
        source.held_out_needs(found.name, [0, found.samples - 1])
    source.describe()


def _number_in(data: bytes, key: str) -> int:
    try:
        found = json.loads(data)[key]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 2
    return found if type(found) is int else 2


def _image_manifest() -> ImageManifest:
    def shard(digit: str) -> Shard:
        return Shard(hash=digit * 64, size=10 * (4 + 192), tokens=10)

    return ImageManifest(image_size=8, classes=("a", "b"), train=(shard("a"), shard("b")), held_out=(shard("c"),))


def _unpack(spec: CorpusSpec) -> Any:
    """Unpack a corpus whose hash is right whatever it is, as an organizer could have written it."""

    def read(data: bytes) -> None:
        size_max = spec.corpus_bytes + OVERHEAD_BYTES_MAX
        named = spec
        with contextlib.suppress(zstandard.ZstdError):
            if zstandard.get_frame_parameters(data).content_size <= size_max:
                whole = zstandard.ZstdDecompressor().decompress(data, max_output_size=size_max)
                named = spec.model_copy(update={"corpus_hash": hashlib.sha256(whole).hexdigest()})
        unpack_corpus(data, named)

    return read


def _snapshot(scratch: Path) -> bytes:
    path = scratch / "valid.safetensors"
    small_replica().save(path)
    return path.read_bytes()


def damage_corpus(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Change what is compressed, or the frame."""
    if rng.random() < 0.3:
        return damage_bytes(rng, data, others)
    try:
        whole = zstandard.ZstdDecompressor().decompress(data, max_output_size=OVERHEAD_BYTES_MAX)
    except zstandard.ZstdError:
        return damage_bytes(rng, data, others)
    return zstandard.ZstdCompressor().compress(damage_msgpack(rng, whole, [whole]))


def _load(scratch: Path) -> Any:
    path = scratch / "snapshot.safetensors"

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return load_replica(small_replica().contract, path)

    return read


def _check_step(found: Any) -> None:
    assert 0 <= found.step < STEP_MAX, f"step {found.step}"
    assert len(found.head) == 32, "a head is a hash"
