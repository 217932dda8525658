"""Mapped tensors have the bits of the file, and take memory only while they are in use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from thinwire_proto.exact.mapped import GIVES_BACK, MappedTensors
from thinwire_proto.exact.replica import hash_of
from thinwire_proto.exact.tensor_files import save_tensors

SIDE = 1024
TENSORS = {
    f"w{number}": torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(number)) for number in range(4)
}
TENSORS |= {"bias": torch.arange(5.0), "none": torch.zeros(0, 3)}
BYTES = sum(4 * tensor.numel() for tensor in TENSORS.values())

needs_smaps = pytest.mark.skipif(
    not GIVES_BACK or not Path("/proc/self/smaps").exists(), reason="memory is measured only on Linux"
)


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    save_tensors(TENSORS, tmp_path / "f", {"step": "7"})
    return tmp_path / "f"


def resident(path: Path) -> int:
    """Bytes of a mapped file that count as memory of this process."""
    smaps = Path("/proc/self/smaps").read_text()
    found = re.search(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss:\s+(\d+) kB", smaps)
    assert found is not None
    return 1024 * int(found[1])


def pass_through(mapped: MappedTensors) -> torch.Tensor:
    """Use each matrix once: as an argument, as a view, and in a list."""
    x = torch.ones(1, SIDE)
    for name in ("w0", "w1"):
        x = F.linear(x, mapped.tensors[name])
    x = x @ mapped.tensors["w2"].T
    return torch.cat([x, mapped.tensors["w3"]])


def test_the_values_are_those_of_the_file(path: Path) -> None:
    mapped = MappedTensors(path)
    assert mapped.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(mapped.tensors[name], tensor) for name, tensor in TENSORS.items())
    assert hash_of(mapped.one_by_one(TENSORS)) == hash_of(TENSORS.values())


@needs_smaps
def test_pages_are_given_back_after_each_operation(path: Path) -> None:
    mapped = MappedTensors(path)
    with mapped.in_use():
        found = pass_through(mapped)
        assert resident(path) < BYTES / 8
        assert torch.equal(found, pass_through(mapped))  # they come back as they were
    assert resident(path) < BYTES / 8
    assert torch.equal(pass_through(mapped), found)
    assert resident(path) > 0.9 * BYTES  # outside, nothing is given back


@needs_smaps
def test_one_piece_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire_proto.exact.mapped.PIECE_BYTES", 1 << 16)
    mapped = MappedTensors(path)
    most = 0
    for piece in mapped.one_by_one(TENSORS):
        assert piece.isfinite().all()
        most = max(most, resident(path))
    assert 1 << 16 <= most < BYTES / 4
