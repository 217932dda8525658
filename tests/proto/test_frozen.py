"""A frozen replica is written as it was, whatever its owner does meanwhile, and what is written is never copied."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from support.small import random_replica, random_votes, small_contract
from thinwire_proto.exact.frozen import FrozenTensors
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import to_float32
from thinwire_proto.exact.tensor_files import read_tensors, save_tensors
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import merge

WIDE = {"width": 256, "layers": 2, "heads": 4, "hidden": 512, "context": 8}


def step(replica: Replica) -> None:
    merged = merge([(random_votes(replica.layout, 8, replica.step), 1)], replica.layout.components)
    replica.apply(Update(replica.step, to_float32(1e-3), to_float32(0.99), merged), b"\1" * 32)


def test_the_file_is_that_of_a_copy(tmp_path: Path) -> None:
    replica = random_replica(small_contract())
    save_tensors(replica.tensors, tmp_path / "copy", {"step": "0"})
    FrozenTensors(replica.tensors).write(tmp_path / "frozen", {"step": "0"})
    assert (tmp_path / "frozen").read_bytes() == (tmp_path / "copy").read_bytes()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
def test_steps_while_a_slow_disk_takes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe takes 64 KiB and then nothing until it is read."""
    monkeypatch.setattr("thinwire_proto.exact.frozen.PIECE_BYTES", 1 << 12)
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
