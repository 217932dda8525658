"""A node meets coordinators whose contracts would harm its machine. Each is refused before anything is fetched."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from support.hostile_coordinator import HostileCoordinator, serving
from support.small import small_contract
from thinwire_node.daemon import Node
from thinwire_node.resources import ResourceLimits
from thinwire_node.settings import NodeOptions, NodeSettings
from thinwire_proto.contract import canonical_json
from thinwire_proto.errors import ThinwireError
from thinwire_proto.wire import service_pb2 as pb

GB = 10**9
LIMITS = ResourceLimits(8 * GB, 20 * GB)
HEAP_MAX = 128 << 20
"""Python's memory that a refusal may take. The contracts of these tests name gigabytes to petabytes."""


@pytest.fixture(autouse=True)
def bounded_heap() -> Iterator[None]:
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < HEAP_MAX


def changed(**sections: dict[str, Any]) -> dict[str, Any]:
    """A contract as JSON, with some keys replaced without any check."""
    document: dict[str, Any] = json.loads(small_contract().written)
    for section, keys in sections.items():
        document[section] = document[section] | keys if isinstance(keys, dict) else keys
    return document


async def ended(tmp_path: Path, hostile: HostileCoordinator) -> str:
    """Let a node join, and return the error that ended it. It does not wait for a better coordinator."""
    async with serving(hostile):
        options = NodeOptions("a", 8, None)
        settings = NodeSettings(hostile.address, tmp_path / "node", "cpu", options, 0.0, limits=LIMITS)
        with pytest.raises(ThinwireError) as raised:
            await Node(settings).run(asyncio.Event())
    return str(raised.value)


GIANT = {"parameters": [{"name": f"p{number}", "shape": [(1 << 31) - 1]} for number in range(5000)]}
TOKENS = {
    "kind": "tokens",
    "seed": 1,
    "weights": {},
    "manifest_hash": "0" * 64,
    "manifest_bytes": 1 << 32,
    "vocabulary": 256,
    "urls": [],
    "folder": "",
}
HF = {"kind": "hf", "vocabulary": 256, "context": 64, "folder": "", "weights": ""}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (changed() | GIANT, r"this run needs \d+\.\d TB of disk space"),
        (changed(model={"width": 65_536, "heads": 64, "hidden": 262_144, "layers": 512}), "must have 1 to"),
        (changed(model={"width": 16_384, "heads": 64, "layers": 512}), "the two ends run different versions"),
        (changed(data={"corpus_bytes": 1 << 40, "train_bytes": 1 << 40}), r"data 1\.1 TB"),
        (changed() | {"data": TOKENS}, r"data (4\.4|68\.7) GB"),
        (changed() | {"data": TOKENS | {"urls": ["file:///etc/passwd"]}}, "must begin with https"),
        (changed() | {"data": TOKENS | {"folder": "/etc"}}, "data.folder is a path, and a contract has no paths"),
        (changed() | {"data": TOKENS | {"manifest_hash": "../../etc/passwd"}}, "manifest_hash: string should match"),
        (changed() | {"model": HF | {"config": '{"auto_map":{"A":"x.py"},"model_type":"llama"}'}}, "code of its own"),
        (changed() | {"model": HF | {"folder": "/etc", "config": ""}}, "model.folder is a path|has config"),
        (changed() | {"model": {"kind": "os.system"}}, "there is no such kind"),
        (changed() | {"model": {"kind": "../../evil"}}, "there is no such kind"),
        (changed(model={"context": 1 << 40}), "less than or equal to 131072"),
        ({"version": 3, "\x1b[2J\u202e": 1}, "there is no such key"),
    ],
)
async def test_a_hostile_contract_is_refused(tmp_path: Path, document: dict[str, Any], says: str) -> None:
    hostile = HostileCoordinator(canonical_json(document))
    text = await ended(tmp_path, hostile)
    assert re.search(says, text), text
    assert text.isprintable()
    assert hostile.calls == {"Join": 1}
    assert not (tmp_path / "node" / "contract.json").exists()


@pytest.mark.parametrize("contract", [b"", b"{", b"[" * 1_000_000, b"\xff" * 100, b"x" * 1_100_000])
async def test_what_is_no_contract_is_refused(tmp_path: Path, contract: bytes) -> None:
    assert re.match("(this is not )?a contract", await ended(tmp_path, HostileCoordinator(contract)))


async def test_another_contract_than_the_node_has_is_refused(tmp_path: Path) -> None:
    """Its momentum and its replica are of the first one."""
    kept = tmp_path / "node" / "contract.json"
    kept.parent.mkdir()
    kept.write_bytes(small_contract().written)
    other = canonical_json(changed(schedule={"steps": 99}))
    assert "accepted this node's contract and then sent a different one" in await ended(
        tmp_path, HostileCoordinator(contract=other)
    )
    assert kept.read_bytes() == small_contract().written


async def test_a_zip_bomb_in_place_of_the_corpus_stays_packed(tmp_path: Path) -> None:
    packer, megabyte = zstandard.ZstdCompressor().compressobj(size=1 << 30), b"\0" * (1 << 20)
    bomb = b"".join(packer.compress(megabyte) for _ in range(1 << 10)) + packer.flush()
    parts = [pb.FilePart(size=len(bomb), data=bomb)]
    hostile = HostileCoordinator(small_contract().written, {"Corpus": parts})
    assert "no coordinator at" in await ended(tmp_path, hostile)  # it would try again, and it gives up at once here
    assert hostile.calls["Corpus"] == 1


async def test_a_corpus_that_never_ends_is_cut_at_the_size_that_the_contract_allows(tmp_path: Path) -> None:
    parts = [pb.FilePart(size=1 << 50, data=b"x" * (1 << 20))] * 100
    hostile = HostileCoordinator(small_contract().written, {"Corpus": parts})
    await ended(tmp_path, hostile)
    assert hostile.calls["Corpus"] == 1
    assert not (tmp_path / "node" / "corpus.zst").exists()


async def test_names_of_files_in_a_manifest_lead_nowhere() -> None:
    from thinwire_proto.data.manifest import Manifest, read_manifest  # noqa: PLC0415
    from thinwire_proto.errors import PayloadError  # noqa: PLC0415

    shard = {"hash": "0" * 64, "size": 200, "tokens": 100}
    source = {"name": "text", "train": [shard], "held_out": [shard]}
    good = {"vocabulary": 256, "sources": [source]}
    assert read_manifest(Manifest, canonical_json(good))
    file = {"hash": "0" * 64, "size": 1}
    wrong: list[dict[str, Any]] = [
        {"files": {name: file}}
        for name in ("../x", "a/b", "/etc/passwd", "..", ".bashrc", "a\\b", "", "x\0", "a" * 200)
    ]
    wrong += [{"sources": [source | {"name": name}]} for name in ("\x1b[2J", "a\u202eb", "a\nb", "")]
    wrong += [{"sources": [source | {"train": [shard | {"hash": "../../x"}]}]}]
    for entry in wrong:
        data = canonical_json(good | entry)
        with pytest.raises(PayloadError, match="cannot be read"):
            read_manifest(Manifest, data, hashlib.sha256(data).hexdigest())
