"""Tests that the needs of a contract are checked before anything is allocated or fetched."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from support.small import small_contract
from thinwire_node.resources import Room, cache_bound, check_contract, check_needs, declared_needs, measured_needs
from thinwire_proto.contract import Contract
from thinwire_proto.data.corpus import CORPUS_VERSION, unpack_corpus
from thinwire_proto.errors import ConfigError, LocalError, PayloadError
from thinwire_proto.models import manifest
from thinwire_proto.models.decoder import Decoder
from thinwire_proto.needs import PROGRAM_BYTES
from thinwire_proto.pass_memory import Pass

GB = 10**9
ROOM = Room(8 * GB, "--max-memory", 500 * GB, "--max-disk")
MICRO_BATCH = 8


def contract_of(**model: Any) -> Contract:
    """A contract whose manifest is that of its model, however large: nothing is allocated."""
    import torch  # noqa: PLC0415

    base = small_contract()
    spec = base.model.model_copy(update=model)
    with torch.device("meta"):
        parameters = manifest(Decoder(spec))  # type: ignore[arg-type] # small_contract has a decoder
    train = base.data.corpus_bytes * 100  # type: ignore[attr-defined]
    data = base.data.model_copy(update={"train_bytes": max(train, spec.context + 1)})
    return Contract.model_validate(
        {"model": spec.model_dump(), "data": data.model_dump(), "parameters": [p.model_dump() for p in parameters]}
    )


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"width": 16_384, "hidden": 1 << 15, "heads": 64}, r"parameters and momentum \d+\.\d GB"),
        ({"layers": 512, "width": 512, "heads": 8, "hidden": 1024}, r"parameters and momentum \d+\.\d GB"),
        ({"context": 1 << 17, "layers": 8, "vocabulary": 1 << 16}, "one sample with checkpoints"),
        ({"vocabulary": 1 << 20, "context": 1 << 15}, "one sample with checkpoints"),
    ],
)
def test_giants_are_refused_with_figures(model: dict[str, int], says: str) -> None:
    with pytest.raises(LocalError, match=says) as raised:
        check_contract(contract_of(**model), ROOM, MICRO_BATCH)
    assert "the node may use 8.0 GB (--max-memory)" in str(raised.value)


@pytest.mark.parametrize(
    ("whole", "checkpointed", "fits"),
    [(8, 0, Pass()), (3.5, 0, Pass(3)), (1, 0, Pass(1)), (0, 2, Pass(2, True)), (0, 1, Pass(1, True)), (0, 0.9, None)],
)
def test_the_largest_pass_that_fits_is_chosen_before_checkpoints(
    whole: float, checkpointed: float, fits: Pass | None
) -> None:
    contract = contract_of(context=1024, layers=4)
    needs = measured_needs(contract)
    of_one = needs.model.activations
    plain, again = of_one.peak(1, checkpoints=False), of_one.peak(1, checkpoints=True)
    assert 2 * again < plain
    room = Room(0, "--max-memory", 20 * GB, "")
    activations = int(whole * plain + checkpointed * again)
    room = replace(room, memory_bytes=needs.trained + needs.data + PROGRAM_BYTES + activations)
    if fits is not None:
        assert check_needs(contract, needs, room, MICRO_BATCH) == fits
        return
    with pytest.raises(LocalError, match=r"one sample with checkpoints \d+\.\d MB\); the node may use"):
        check_needs(contract, needs, room, MICRO_BATCH)


NARROW = """
import sys
from pathlib import Path
import torch
from bench.speed.peaks import status_bytes
from thinwire.compression.momentum import Momentum
from thinwire_proto.contract import parse_contract
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.wire.codec import encode_votes

torch.set_num_threads(1)
contract = parse_contract(sys.stdin.buffer.read())
layout = layout_of(contract.parameters)
gradients = {found.name: torch.ones(found.shape) for found in contract.parameters}
Path("/proc/self/clear_refs").write_text("5")
before = status_bytes("VmRSS")
momentum = Momentum(layout, contract.demo, "cpu")
momentum.buffer.normal_()
sent = momentum.accumulate_and_extract(gradients, 1e-3, 1, contract.demo.k)
encode_votes(sent.votes(), layout)
print(status_bytes("VmHWM") - before)
"""
"""Extracts and encodes a contribution, and prints by how many bytes the process has grown."""
WHOLE = {"k": 4096, "magnitude": "tile", "precondition": "none", "update_levels": 3}
OF_ANY_MODEL = 20_000_000
"""Buffers of one batch of tiles, and torch's own, which PROGRAM_BYTES counts."""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
@pytest.mark.parametrize("demo", [{"k": 96}, {"k": 4096}, WHOLE], ids=["few", "all", "whole tiles"])
def test_tiles_of_narrow_matrices_are_counted_whole_and_so_is_what_is_sent(demo: dict[str, Any]) -> None:
    """Such as those of adapters: here there are 32 components for each parameter."""
    base = contract_of(width=2, heads=1, layers=1, hidden=16_384, context=2)
    contract = Contract.model_validate(base.model_dump() | {"demo": demo})
    command = [sys.executable, "-c", NARROW]
    grown = int(subprocess.run(command, input=contract.written, check=True, capture_output=True).stdout)
    assert grown < declared_needs(contract).trained + OF_ANY_MODEL
    assert grown > 10_000_000 + OF_ANY_MODEL


def test_processes_that_divide_need_disk_to_put_together_what_they_save() -> None:
    contract = small_contract()
    needs = declared_needs(contract)
    room = Room(8 * GB, "", needs.disk + needs.trained // 2 - 1, "--max-disk")
    check_needs(contract, needs, room, MICRO_BATCH)
    with pytest.raises(LocalError, match="of disk space"):
        check_needs(contract, needs, replace(room, of_several=True), MICRO_BATCH)


def test_the_disk_is_checked_with_figures() -> None:
    contract = small_contract()
    with pytest.raises(LocalError, match=r"of disk space .*the node may use 1\.0 MB \(--max-disk\): free some space"):
        check_needs(contract, declared_needs(contract), Room(8 * GB, "", 1_000_000, "--max-disk"), MICRO_BATCH)


@pytest.mark.parametrize(
    ("cache", "base", "left", "bound"),
    [
        (4 * GB, 0, 500 * GB, 4 * GB),
        (4 * GB, 3 * GB, 500 * GB, 4 * GB),
        (4 * GB, 14 * GB, 500 * GB, 18 * GB),  # the data have the volunteer's bound to themselves
        (4 * GB, 14 * GB, 16 * GB, 16 * GB),
        (10, 0, 500 * GB, 10),
    ],
)
def test_the_bound_of_the_cache_is_for_data_and_base(cache: int, base: int, left: int, bound: int) -> None:
    assert cache_bound(cache, base, left) == bound


def test_a_card_is_checked_by_its_own_memory() -> None:
    contract = contract_of(context=1024)
    needs = measured_needs(contract)
    card = Room(8 * GB, "--max-memory", 20 * GB, "", device_bytes=0)
    card = replace(card, device_bytes=needs.trained + needs.model.activations.peak(2, checkpoints=False))
    assert check_needs(contract, needs, card, MICRO_BATCH) == Pass(2)
    with pytest.raises(LocalError, match="of the GPU's memory "):
        check_needs(contract, needs, replace(card, device_bytes=needs.trained), MICRO_BATCH)


def test_a_corpus_of_a_million_lists_is_refused() -> None:
    import hashlib  # noqa: PLC0415

    import msgpack  # noqa: PLC0415
    import zstandard  # noqa: PLC0415

    canonical = msgpack.packb([CORPUS_VERSION, [[[]] * 1000] * 1000])
    named = small_contract().data.model_copy(update={"corpus_hash": hashlib.sha256(canonical).hexdigest()})
    with pytest.raises(PayloadError, match="more than 262,144 files"):
        unpack_corpus(zstandard.ZstdCompressor().compress(canonical), named)  # type: ignore[arg-type]


def test_a_model_of_a_million_modules_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import nn  # noqa: PLC0415

    from thinwire_proto.models import wrapped  # noqa: PLC0415

    monkeypatch.setattr(wrapped, "MODULES_MAX", 1000)
    with wrapped.bounded_build():
        nn.Sequential(*(nn.Identity() for _ in range(100)))
    with pytest.raises(ConfigError, match="more than 1,000 modules"), wrapped.bounded_build():
        nn.ModuleList(nn.Identity() for _ in range(1001))


def test_the_node_tells_libraries_to_fetch_nothing() -> None:
    code = "import os, sys; sys.argv=['thinwire-node', 'status', '--state-dir', '/nowhere'];"
    code += "from thinwire_node.__main__ import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "print(os.environ['HF_HUB_OFFLINE'], os.environ['USE_HUB_KERNELS'])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["1", "NO"]
