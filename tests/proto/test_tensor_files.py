"""Files of tensors: the library's bytes, mapped without taking memory, and written while their owner goes on."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from support.small import random_replica, random_votes, small_contract
from thinwire_proto.exact import tensor_files
from thinwire_proto.exact.mapped import GIVES_BACK, MappedTensors
from thinwire_proto.exact.replica import Replica, hash_of
from thinwire_proto.exact.schedule import to_float32
from thinwire_proto.exact.tensor_files import read_about, read_tensors, save_tensors
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import merge

TENSORS = {
    "z": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a": torch.linspace(-1, 1, 5),
    "ä": torch.tensor(3.5),
    "none": torch.zeros(0, 4),
}


def test_the_bytes_are_those_of_the_library(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "library", metadata={"format": "pt"})
    save_tensors(TENSORS, tmp_path / "ours", {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "library").read_bytes()


@pytest.mark.parametrize("dtype", tensor_files.DTYPES)
def test_every_type_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"one": torch.tensor([[0, 1], [2, 3]]).to(dtype), "numbers": torch.arange(3), "step": torch.zeros(1)}
    save_tensors(tensors, tmp_path / "f", {"step": "7"})
    for found in (read_tensors(tmp_path / "f"), load_file(tmp_path / "f")):
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
        assert all(found[name].dtype == tensor.dtype for name, tensor in tensors.items())
    assert read_about(tmp_path / "f") == {"step": "7"}


@pytest.mark.parametrize("kept", [3, 20, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    save_tensors(TENSORS, tmp_path / "f", {})
    (tmp_path / "f").write_bytes((tmp_path / "f").read_bytes()[:kept])
    with pytest.raises(SafetensorError):
        read_tensors(tmp_path / "f")


SIDE = 1024
MAPPED = {f"w{number}": torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(number)) for number in range(4)}
MAPPED |= {"bias": torch.arange(5.0), "none": torch.zeros(0, 3)}
BYTES = sum(4 * tensor.numel() for tensor in MAPPED.values())

needs_smaps = pytest.mark.skipif(
    not GIVES_BACK or not Path("/proc/self/smaps").exists(), reason="memory is measured only on Linux"
)


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    save_tensors(MAPPED, tmp_path / "f", {"step": "7"})
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
    assert mapped.tensors.keys() == MAPPED.keys()
    assert all(torch.equal(mapped.tensors[name], tensor) for name, tensor in MAPPED.items())
    assert hash_of(mapped.one_by_one(MAPPED)) == hash_of(MAPPED.values())


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
    monkeypatch.setattr("thinwire_proto.exact.mapped.PIECE_BYTES", 1 << 20)
    mapped = MappedTensors(path)
    most = 0
    for piece in mapped.one_by_one(MAPPED):
        assert piece.isfinite().all()
        most = max(most, resident(path))
    assert 1 << 20 <= most < BYTES / 4


WIDE = {"width": 256, "layers": 2, "heads": 4, "hidden": 512, "context": 8}


def step(replica: Replica) -> None:
    merged = merge([(random_votes(replica.layout, 8, replica.step), 1)], replica.layout.components)
    replica.apply(Update(replica.step, to_float32(1e-3), to_float32(0.99), merged), b"\1" * 32)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
def test_steps_while_a_slow_disk_takes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe takes 64 KiB and then nothing until it is read."""
    monkeypatch.setattr("thinwire_proto.exact.replica.PIECE_BYTES", 1 << 12)
    replica = random_replica(small_contract(model=WIDE))
    before, frozen, pipe = replica.clone(), replica.freeze(), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=frozen.write, args=(pipe,))
    writer.start()
    with pipe.open("rb") as reader:
        found = reader.read(1 << 12)  # it has begun
        size = sum(4 * tensor.numel() for tensor in replica.tensors.values())
        assert 0 < frozen.tensors.separate() < size
        assert replica.frozen == []  # later steps neither wait nor copy
        for _ in range(3):
            assert frozen.tensors.separate() == 0
            step(replica)
        found += reader.read()
    writer.join()
    (tmp_path / "f").write_bytes(found)
    assert all(torch.equal(tensor, before.tensors[name]) for name, tensor in read_tensors(tmp_path / "f").items())
    assert frozen.tensors.separate() == 0


def test_a_file_that_cannot_be_written_sets_the_replica_free(tmp_path: Path) -> None:
    replica = random_replica(small_contract())
    frozen = replica.freeze()
    with pytest.raises(OSError, match="cannot be written"):
        frozen.write(tmp_path / "no folder" / "f")
    assert frozen.tensors.released.is_set()
    assert replica.frozen == []
